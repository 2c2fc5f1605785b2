// SPDX-License-Identifier: Apache-2.0
// A job of one rank.
#pragma once

#include "check.h"
#include "horovod/horovod.h"

inline hvd_context* start_alone() {
  const int32_t host = 0;
  hvd_options options{};
  options.size = sizeof options;
  options.world_size = 1;
  options.generation = 1;
  options.host_of_rank = &host;
  hvd_context* context = nullptr;
  EXPECT(hvd_start(&options, &context, nullptr) == HVD_OK);
  return context;
}
