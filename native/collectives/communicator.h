// SPDX-License-Identifier: Apache-2.0
// The one table of operations that every way between ranks implements (step 7): shared memory, TCP, both of them over
// several hosts, and the single rank's loopback.
//
// A Communicator joins the members of one process set. The engine calls it from one thread at a time (the one that
// holds the driver's token); every member calls the same operations with the same sizes in the same order, and only
// when every member is ready, so a call may block: only a death interrupts it. After a failed call the communicator is
// unusable. On failure the text names the peer; `failed_rank` is a world rank. The contents of the outputs are
// undefined then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "platform/status.h"
#include "reduction/types.h"

namespace hvd {

// A tensor of a fused batch: `count` elements, input and output may be the same memory but do not overlap otherwise.
// The output is null where this member only gives.
struct Slice {
  const std::byte* input;
  std::byte* output;
  int64_t count;
};

// How an allreduce is cut: into pieces of so many elements, the last one shorter.
struct Cut {
  int64_t elements;
  int64_t ahead;           // how many pieces are offered before the first one is finished, at least 1
  bool in_groups = false;  // of the hosts (plan.h)
};

// An allreduce whose inputs come piece by piece, and whose results leave so. The slices stay as they are until the last
// piece is finished; meanwhile the communicator does nothing else.
class PiecewiseAllreduce {
 public:
  virtual ~PiecewiseAllreduce() = default;
  // The input of this piece is there, as are those of the pieces before it. Moves what can move without waiting.
  virtual Status offer(int64_t piece) = 0;
  // Blocks until the result of this piece is there. The piece `ahead` further on has been offered, if there is one.
  virtual Status finish(int64_t piece) = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual const char* name() const = 0;  // as in its row of the registry
  virtual int member() const = 0;        // this process' index among the members
  virtual int size() const = 0;

  // Reduces the concatenation of the slices element by element over the members, in the order of levels.h.
  virtual Status allreduce(std::span<const Slice> slices, const Reduction& reduction) = 0;
  // Copies the root member's input into every member's output. At the root, output may equal input or differ.
  virtual Status broadcast(std::span<const Slice> slices, size_t element_bytes, int root_member) = 0;
  // Every member gives `bytes` (at most 64 KiB) and receives all members' in order: size() * bytes. For small facts.
  virtual Status exchange(const void* mine, size_t bytes, void* all) = 0;
  // Member m gives bytes_of_member[m]; `all` receives the concatenation in member order.
  virtual Status allgather(const void* mine, std::span<const int64_t> bytes_of_member, void* all) = 0;
  // parts[m]: what member m will have the reduction of, equally long on all members; only this member's own part has
  // outputs, which overlap no input. Every element has the bits that allreduce gives it.
  virtual Status reducescatter(std::span<const std::vector<Slice>> parts, const Reduction& reduction) = 0;
  // bytes[s * size() + d]: how much member s has for member d, the same matrix on all members. `mine`: the parts by
  // destination, one after another; `all` receives the parts by source.
  virtual Status alltoall(const void* mine, std::span<const int64_t> bytes, void* all) = 0;
  virtual Status barrier() = 0;

  // The same as an allreduce, in pieces. The default moves nothing before a piece is finished.
  virtual std::unique_ptr<PiecewiseAllreduce> allreduce_in_pieces(std::span<const Slice> slices,
                                                                  const Reduction& reduction, Cut cut);
  // Copies every member's part to all members. parts[m] is member m's input and every member's output, equally long on
  // all members. At m, input and output may be the same memory. The default is a broadcast from each member.
  virtual Status share(std::span<const std::vector<Slice>> parts, size_t element_bytes);

  // From any thread, also while another is inside an operation. JSON members (without braces) for hvd_statistics, for
  // example "\"hop_ns\": 41, \"stores\": \"cached\"".
  virtual std::string describe() const = 0;
};

}  // namespace hvd
