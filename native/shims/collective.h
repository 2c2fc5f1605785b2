// SPDX-License-Identifier: Apache-2.0
// The shims' common part: a collective as a framework's program describes it, its request, how it is submitted, and how
// the peers hear of a call that was refused. A shim adds only how its framework calls, and how it is answered.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>

#include "horovod/horovod.h"
#include "shims/generation.h"

namespace hvd::shims {

hvd_status new_status();
// Returns the code.
int set_failure(hvd_status* status, int code, std::string_view text);
// The text of a failure for people: its last line names the command that explains it. `text` is the status' own, if it
// has not been made plainer.
std::string text_of(const hvd_status& status, std::string_view text);

// Without its tensors.
struct Collective {
  hvd_kind kind = HVD_ALLREDUCE;
  std::string name;  // as the other ranks know it; empty: matched by order
  int32_t process_set = 0;
  int32_t op = HVD_SUM;
  int32_t root_rank = -1;
  double prescale = 1.0, postscale = 1.0;
};

// True if the size of the results is known only when the operation is done.
inline bool is_ragged(hvd_kind kind) { return kind == HVD_ALLGATHER || kind == HVD_ALLTOALL; }

// It refers to the collective's name and to the tensors.
hvd_request request_of(const Collective& collective, std::span<const hvd_tensor> tensors);

// The GPU of the tensors that have elements. If none has, that of the stream, on which their moment is recorded.
int find_device(hvd_context* context, std::span<const hvd_tensor> tensors, void* stream, int32_t* device,
                hvd_status* status);

// The prepared requests of calls, by all that a request has but addresses. A request is prepared when it comes for the
// second time, so shapes that never come back cost little. To submit or to clear, hold the generation shared.
class EntryCache {
 public:
  // `most`: more requests than that are not kept. Then the half that was not used for longest goes.
  explicit EntryCache(size_t most = 1) : most_(most) {}

  // Submits the request. On a GPU, the inputs are what `stream` (CUstream) has computed by now.
  int submit(Generation* generation, const hvd_request& request, void* stream, hvd_handle* handle, hvd_status* status);
  size_t size();
  void clear();

 private:
  using Entry = std::shared_ptr<hvd_entry>;
  struct Known {
    Entry entry;        // null: the request has come once
    uint64_t used = 0;  // the number of its last call
  };

  int find(Generation* generation, const std::string& key, const hvd_request& request, Entry* entry,
           hvd_status* status);
  void forget_old_half();

  const size_t most_;
  std::mutex mutex_;
  uint64_t generation_ = 0;  // whose entries these are
  uint64_t calls_ = 0;
  std::map<std::string, Known> known_;
};

// Tells the peers, who may be waiting, that this rank cannot submit its call. `name` empty: matched by order. Does
// nothing in a job that has ended.
void refuse(hvd_context* context, const std::string& name, int32_t process_set, const char* why);
// Tells them that the engine did not take a request. Does nothing unless this rank's call alone has failed.
void tell_refusal(hvd_context* context, const std::string& name, int32_t process_set, const hvd_status& status);

}  // namespace hvd::shims
