// SPDX-License-Identifier: Apache-2.0
// Collectives as operations of MXNet's engine, with a stand-in for MXNet: who gets its memory, its end and its errors.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "alone.h"
#include "check.h"
#include "shims/mxnet/call.h"

namespace {

// The part of an NDArray that counts. In a layout of MXNet's own its memory cannot be had.
struct Chunk {
  std::vector<float> values;
  bool own_layout = false;
};
struct Array {
  Chunk* chunk;
};
struct Tensor {
  void* data;
};

std::atomic<int> arrays{0}, tensors{0};

int copy_array(void* array, void** copied) {
  *copied = new Array(*static_cast<Array*>(array));
  ++arrays;
  return 0;
}

int free_array(void* array) {
  delete static_cast<Array*>(array);
  --arrays;
  return 0;
}

int to_dlpack(void* array, void** tensor) {
  Chunk* const chunk = static_cast<Array*>(array)->chunk;
  if (chunk->own_layout) return -1;
  *tensor = new Tensor{chunk->values.data()};
  ++tensors;
  return 0;
}

int free_dlpack(void* tensor) {
  delete static_cast<Tensor*>(tensor);
  --tensors;
  return 0;
}

const char* last_error() { return "a layout of its own"; }
void make_error(void* error, const char* text) { new (error) std::runtime_error(text); }
void end_error(void* error) { static_cast<std::runtime_error*>(error)->~runtime_error(); }
void reorder(void* chunk) { static_cast<Chunk*>(chunk)->own_layout = false; }

// One operation of MXNet: CallbackOnComplete, whose end deletes the call.
struct Operation {
  void (*callback)(void* engine, Operation* operation, const std::runtime_error* error) = &Operation::end;
  void* engine = nullptr;
  Operation* self = this;
  void* call = nullptr;
  std::string error;
  std::atomic<bool> ended{false};

  static void end(void* /*engine*/, Operation* operation, const std::runtime_error* error) {
    if (error != nullptr) operation->error = error->what();
    hvd_mxnet_delete(operation->call);
    operation->ended = true;
    operation->ended.notify_all();
  }
  void run() {
    hvd_mxnet_run(nullptr, this, call);
    ended.wait(false);
  }
};

// At the end of a test: every call has freed what it had.
void expect_nothing_left() { EXPECT(arrays == 0 && tensors == 0); }

// A job of one rank, attached.
class Job {
 public:
  Job() {
    const hvd_mxnet_api api{copy_array, free_array, to_dlpack, free_dlpack, last_error, make_error, end_error, reorder};
    hvd_mxnet_use(&api);
    context_ = start_alone();
    number_ = hvd_mxnet_attach(context_);
  }
  ~Job() {
    hvd_mxnet_attach(nullptr);
    EXPECT(hvd_stop(context_, 5000, nullptr) == HVD_OK);
    hvd_free(context_);
  }
  std::string generation() const { return std::to_string(number_); }

 private:
  hvd_context* context_ = nullptr;
  uint64_t number_ = 0;
};

// An allreduce of an array into another, perhaps the same.
void* new_call(Array* input, Array* output, void* step = nullptr, const char* name = "allreduce.t", double scale = 2) {
  const int64_t shape = static_cast<int64_t>(input->chunk->values.size());
  const hvd_tensor tensor{nullptr, nullptr, &shape, 1, HVD_FLOAT32};
  hvd_request request{};
  request.size = sizeof request;
  request.kind = HVD_ALLREDUCE;
  request.op = HVD_SUM;
  request.ntensors = 1;
  request.tensor_size = sizeof tensor;
  request.name = name;
  request.tensors = &tensor;
  request.prescale = scale;
  request.postscale = 1;
  void* const inputs[] = {input};
  void* const outputs[] = {output};
  return hvd_mxnet_new(&request, inputs, outputs, step);
}

}  // namespace

TEST(a_call_outlives_what_it_was_made_of_and_writes_its_output) {
  const Job job;
  Chunk from{{1, 2, 3}}, to{{0, 0, 0}};
  Operation operation;
  {
    Array input{&from}, output{&to};
    operation.call = new_call(&input, &output);
  }
  operation.run();
  EXPECT(operation.error.empty());
  EXPECT((to.values == std::vector<float>{2, 4, 6}) && (from.values == std::vector<float>{1, 2, 3}));
  expect_nothing_left();
}

TEST(a_layout_of_mxnets_own_is_undone_where_the_call_writes_and_refused_elsewhere) {
  const Job job;
  Chunk mine{{1, 2}, true}, other{{1, 2}, true}, result{{0, 0}};
  Array array{&mine}, input{&other}, output{&result};
  Operation in_place;
  in_place.call = new_call(&array, &array);
  in_place.run();
  EXPECT(in_place.error.empty() && (mine.values == std::vector<float>{2, 4}));
  Operation refused;
  refused.call = new_call(&input, &output);
  refused.run();
  EXPECT(refused.error == "horovod: a layout of its own\n(code 2, rank -1, generation " + job.generation() + ")");
  expect_nothing_left();
}

TEST(what_the_engine_refuses_is_an_error_of_the_operation) {
  const Job job;
  Chunk chunk{{1}};
  Array array{&chunk};
  Operation operation;
  operation.call = new_call(&array, &array, nullptr, std::string(5000, 'x').c_str());
  operation.run();
  EXPECT(operation.error.find("4096 bytes") != std::string::npos &&
         operation.error.find("(code 2,") != std::string::npos);
  expect_nothing_left();
}

TEST(a_call_that_never_runs_is_deleted_with_its_part_in_a_step) {
  const Job job;
  Chunk chunk{{1}};
  Array array{&chunk};
  void* const step = hvd_mxnet_new_step(2);
  Operation operation;
  operation.call = new_call(&array, &array, step);
  hvd_mxnet_delete(new_call(&array, &array, step, "allreduce.never"));
  operation.run();
  EXPECT(operation.error.empty() && chunk.values[0] == 2);
  expect_nothing_left();
}

TEST(a_call_of_an_ended_generation_is_not_submitted_to_the_next) {
  Chunk chunk{{1}};
  Array array{&chunk};
  Operation late, later;
  std::string generation;
  {
    const Job job;
    generation = job.generation();
    late.call = new_call(&array, &array);
    later.call = new_call(&array, &array);
    hvd_mxnet_attach(nullptr);
    late.run();
    hvd_mxnet_delete(new_call(&array, &array));  // and nobody is told
  }
  const Job job;
  later.run();
  for (const Operation* operation : {&late, &later}) {
    EXPECT(operation->error ==
           "horovod: Horovod was shut down before `allreduce.t` could begin\n(code 8, rank -1, "
           "generation " +
               generation + ")");
  }
  EXPECT(chunk.values[0] == 1);
  expect_nothing_left();
}

TEST(failures_are_told_one_by_one) {
  const Job job;
  static std::atomic<int> telling{0}, most{0};
  const auto tell = [](void* engine, Operation* operation, const std::runtime_error* error) {
    most = std::max<int>(most, ++telling);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --telling;
    Operation::end(engine, operation, error);
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&tell] {
      for (int n = 0; n < 5; ++n) {
        Chunk foreign{{1}, /*own_layout=*/true}, to{{0}};
        Array input{&foreign}, output{&to};
        Operation operation;
        operation.callback = tell;
        operation.call = new_call(&input, &output);
        operation.run();
        EXPECT(!operation.error.empty());
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT(most == 1);
  expect_nothing_left();
}

TEST_MAIN
