/* SPDX-License-Identifier: Apache-2.0
 * A caller that was built against other layouts than the library's: its own structs, shorter or longer than those of
 * horovod.h, which it does not include. Run by test_old_callers.py; argv[1]: "old", "new", or "future". */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The first fields of each struct, as an older header had them. */
typedef struct {
  uint32_t size;
  int32_t rank, world_size;
  uint64_t generation;
  const int32_t* host_of_rank;
} old_options;
typedef struct {
  const void* input;
  void* output;
  const int64_t* shape;
  int32_t ndim, dtype;
} old_tensor;
typedef struct {
  uint32_t size;
  int32_t kind, op, process_set, root_rank;
  uint32_t flags, ntensors, tensor_size;
  const char* name;
  const void* tensors;
  double prescale, postscale;
} old_request;
typedef struct {
  uint32_t size;
  int32_t code, failed_rank, member;
  char text[64];
} old_status;
typedef struct {
  uint32_t size;
  int32_t ndim;
  const void* data;
  const int64_t* shape;
} old_result;

/* The same with what a newer header may have appended. */
typedef struct {
  old_options old;
  const void* settings;
  uint32_t nsettings, nlinks;
  const void* links;
  uint32_t setting_size, link_size;
  uint64_t later[4];
} new_options;
typedef struct {
  old_tensor old;
  uint64_t later[2];
} new_tensor;
typedef struct {
  const char *name, *value;
  uint64_t later;
} new_setting;
typedef struct {
  old_request old;
  void *done, *user;
  const int64_t* splits;
  uint32_t nsplits, reserved;
  uint64_t later[3];
} new_request;
typedef struct {
  uint32_t size;
  int32_t code, failed_rank, member;
  char text[2048];
  uint64_t later[2];
} new_status;
typedef struct {
  old_result old;
  const int64_t* rows;
  uint64_t later[2];
} new_result;

extern int hvd_start(const void*, void**, void*);
extern int hvd_stop(void*, uint32_t, void*);
extern int hvd_submit(void*, const void*, uint64_t*, void*);
extern int hvd_wait(void*, uint64_t, int32_t, void*);
extern int hvd_get_result(void*, uint64_t, uint32_t, void*, void*);

static int ok(const char* what, int code, const char* text) {
  if (code != 0) printf("%s: code %d: %s\n", what, code, text);
  return code == 0;
}

int main(int argc, char** argv) {
  const int is_old = argc > 1 && strcmp(argv[1], "old") == 0, is_future = argc > 1 && strcmp(argv[1], "future") == 0;
  const int32_t host = 0;
  float value[2] = {3, 4}, twice[2] = {0, 0};
  const int64_t shape = 2;
  void* context = NULL;
  uint64_t handle = 0;
  struct {
    old_status status;
    unsigned char guard[32];
  } old_answer;
  new_status new_answer;
  memset(&old_answer, 0x5a, sizeof old_answer);
  memset(&new_answer, 0, sizeof new_answer);
  old_answer.status.size = sizeof(old_status);
  new_answer.size = sizeof new_answer;
  void* const status = is_old ? (void*)&old_answer.status : (void*)&new_answer;
  const char* const text = is_old ? old_answer.status.text : new_answer.text;

  new_setting settings[2] = {{"cycle_time_ms", "0.5", 0}, {"transport", "auto", 0}};
  new_options options;
  memset(&options, 0, sizeof options);
  options.old.size = is_old ? sizeof(old_options) : sizeof(new_options);
  options.old.world_size = 1;
  options.old.generation = 1;
  options.old.host_of_rank = &host;
  options.settings = is_old ? NULL : settings;
  options.nsettings = is_old ? 0 : 2;
  options.setting_size = sizeof(new_setting);
  if (!ok("start", hvd_start(&options, &context, status), text)) return 1;

  new_tensor tensors[2];
  memset(tensors, 0, sizeof tensors);
  old_tensor only = {value, twice, &shape, 1, 7};
  tensors[0].old = only;
  tensors[1].old = only;
  new_request request;
  memset(&request, 0, sizeof request);
  request.old.size = is_old ? sizeof(old_request) : sizeof(new_request);
  request.old.op = 1; /* the sum */
  request.old.name = "a";
  request.old.ntensors = is_old ? 1 : 2;
  request.old.tensor_size = is_old ? 0 : sizeof(new_tensor);
  request.old.tensors = is_old ? (const void*)&only : (const void*)tensors;
  request.old.prescale = 2;
  request.old.postscale = 1;
  if (is_future) tensors[1].later[1] = 1; /* something that this library cannot know */
  if (!ok("submit", hvd_submit(context, &request, &handle, status), text)) return 1;
  if (!ok("wait", hvd_wait(context, handle, 10000, status), text)) return 1;
  printf("allreduce %g %g\n", twice[0], twice[1]);

  request.old.kind = 1; /* allgather */
  request.old.name = "b";
  request.old.ntensors = 1;
  struct {
    old_result result;
    unsigned char guard[32];
  } old_gathered;
  new_result new_gathered;
  memset(&old_gathered, 0x5a, sizeof old_gathered);
  memset(&new_gathered, 0, sizeof new_gathered);
  old_gathered.result.size = sizeof(old_result);
  new_gathered.old.size = sizeof new_gathered;
  void* const gathered = is_old ? (void*)&old_gathered.result : (void*)&new_gathered;
  if (!ok("submit", hvd_submit(context, &request, &handle, status), text)) return 1;
  if (!ok("wait", hvd_wait(context, handle, 10000, status), text)) return 1;
  if (!ok("result", hvd_get_result(context, handle, 0, gathered, status), text)) return 1;
  const old_result* const result = is_old ? &old_gathered.result : &new_gathered.old;
  printf("allgather %d %lld %g\n", result->ndim, (long long)result->shape[0], ((const float*)result->data)[1]);
  if (!is_old) printf("rows %lld\n", (long long)new_gathered.rows[0]);
  for (size_t i = 0; i < sizeof old_gathered.guard; ++i) {
    if (old_gathered.guard[i] != 0x5a || old_answer.guard[i] != 0x5a) return 2; /* written beyond the struct */
  }
  return ok("stop", hvd_stop(context, 1000, status), text) ? 0 : 1;
}
