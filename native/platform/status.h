// SPDX-License-Identifier: Apache-2.0
// Status: how every fallible function inside the core reports. At the C boundary it becomes a code and a text.
#pragma once

#include <string>
#include <utility>

#include "horovod/horovod.h"

namespace hvd {

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(hvd_code code, std::string text, int failed_rank = -1)
      : code_(code), failed_rank_(failed_rank), text_(std::move(text)) {}

  bool ok() const { return code_ == HVD_OK; }
  hvd_code code() const { return code_; }
  int failed_rank() const { return failed_rank_; }
  const std::string& text() const { return text_; }

  // The word that `horovodrun --explain` knows a code by. nullptr for success and for a wrong argument, which its text
  // explains in full.
  static const char* name_of(int code);

  // Adds the action that failed in front of the text: "allreduce of `grad.3`: rank 2 closed the connection".
  Status while_doing(const std::string& what) && {
    if (!ok()) text_ = what + ": " + text_;
    return std::move(*this);
  }

 private:
  hvd_code code_ = HVD_OK;
  int failed_rank_ = -1;
  std::string text_;
};

#define HVD_RETURN_IF_ERROR(expression)                \
  do {                                                 \
    ::hvd::Status hvd_status_here = (expression);      \
    if (!hvd_status_here.ok()) return hvd_status_here; \
  } while (0)

}  // namespace hvd
