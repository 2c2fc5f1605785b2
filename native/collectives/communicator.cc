// SPDX-License-Identifier: Apache-2.0
// The operations that a communicator builds from its other operations (step 7).
#include "collectives/communicator.h"

#include <algorithm>

#include "collectives/slices.h"

namespace hvd {

namespace {

// Each piece is an operation.
class OneByOne final : public PiecewiseAllreduce {
 public:
  OneByOne(Communicator& communicator, std::span<const Slice> slices, const Reduction& reduction, Cut cut)
      : communicator_(communicator),
        slices_(slices, element_size(reduction.dtype)),
        reduction_(reduction),
        elements_(cut.elements) {}
  Status offer(int64_t) override { return Status(); }
  Status finish(int64_t piece) override {
    const int64_t begin = piece * elements_;
    return communicator_.allreduce(slices_.range(begin, std::min(elements_, slices_.count() - begin)), reduction_);
  }

 private:
  Communicator& communicator_;
  const SliceList slices_;
  const Reduction reduction_;
  const int64_t elements_;
};

}  // namespace

std::unique_ptr<PiecewiseAllreduce> Communicator::allreduce_in_pieces(std::span<const Slice> slices,
                                                                      const Reduction& reduction, Cut cut) {
  return std::make_unique<OneByOne>(*this, slices, reduction, cut);
}

Status Communicator::share(std::span<const std::vector<Slice>> parts, size_t element_bytes) {
  for (size_t m = 0; m < parts.size(); ++m) {
    HVD_RETURN_IF_ERROR(broadcast(parts[m], element_bytes, static_cast<int>(m)));
  }
  return Status();
}

}  // namespace hvd
