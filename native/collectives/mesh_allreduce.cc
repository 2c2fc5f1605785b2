// SPDX-License-Identifier: Apache-2.0
// Allreduce over a Mesh (step 7); the algorithms stand in mesh_allreduce.h.
#include "collectives/mesh_allreduce.h"

#include <algorithm>
#include <vector>

namespace hvd {

namespace {

constexpr int64_t kLag = 2;  // chunks whose shares are under way before the first result is sent
constexpr size_t kShareBytes = size_t{256} << 10;
constexpr size_t kShareUnitBytes = 64;
constexpr size_t kManyLinksBytes = size_t{1} << 20;

class DirectExchange {
 public:
  DirectExchange(Mesh& mesh, MemberFold& fold, const SliceList& slices, const Reduction& reduction,
                 std::vector<std::byte>* scratch)
      : mesh_(mesh),
        fold_(fold),
        slices_(slices),
        reduction_(reduction),
        scratch_(scratch),
        element_bytes_(static_cast<int64_t>(slices.element_bytes())),
        share_elements_(static_cast<int64_t>(share_bytes(slices.bytes())) / element_bytes_),
        chunk_elements_(share_elements_ * mesh.size()),
        chunks_((slices.count() + chunk_elements_ - 1) / chunk_elements_),
        links_(slices.bytes() >= kManyLinksBytes ? mesh.links_per_peer() : 1),
        missing_(static_cast<size_t>(chunks_), mesh.size() - 1),
        sources_(static_cast<size_t>(mesh.size())) {
    scratch_->resize(
        std::max(scratch_->size(), static_cast<size_t>(mesh.size() * kLag * share_elements_ * element_bytes_)));
  }

  Status run() {
    mesh_.begin("allreduce");
    for (int64_t k = 0; k < kLag; ++k) exchange_shares(k);
    std::vector<Mesh::Arrival> arrivals;
    while (folded_ < chunks_ || !mesh_.idle()) {
      arrivals.clear();
      HVD_RETURN_IF_ERROR(mesh_.advance(&arrivals));
      for (const Mesh::Arrival& arrival : arrivals) --missing_[static_cast<size_t>(arrival.tag)];
      // In the order of the chunks, as the links carry them.
      while (folded_ < chunks_ && missing_[static_cast<size_t>(folded_)] == 0) {
        fold(folded_);
        exchange_results(folded_);
        exchange_shares(folded_ + kLag);
        ++folded_;
      }
    }
    return Status();
  }

 private:
  // At least kLag chunks where the batch is large enough to be cut at all.
  size_t share_bytes(size_t bytes) const {
    const size_t half = bytes / (2 * static_cast<size_t>(mesh_.size()));
    const size_t rounded = (half + kShareUnitBytes - 1) / kShareUnitBytes * kShareUnitBytes;
    return std::clamp(rounded, kShareUnitBytes, kShareBytes);
  }
  int link(int64_t k) const { return static_cast<int>(k % links_); }
  Share share(int64_t k, int member) const {
    const int64_t begin = k * chunk_elements_;
    const int64_t unit = std::max<int64_t>(1, static_cast<int64_t>(kShareUnitBytes) / element_bytes_);
    Share part = share_of(std::min(chunk_elements_, slices_.count() - begin), mesh_.size(), member, unit);
    part.begin += begin;
    return part;
  }
  std::byte* scratch(int64_t k, int member) const {
    return scratch_->data() + (member * kLag + k % kLag) * share_elements_ * element_bytes_;
  }
  size_t bytes(int64_t count) const { return static_cast<size_t>(count * element_bytes_); }

  // My peers' shares of chunk k to them, and theirs of my share into scratch, where chunk k - kLag has been folded by
  // now.
  void exchange_shares(int64_t k) {
    if (k >= chunks_) return;
    for (int step = 1; step < mesh_.size(); ++step) {
      const int to = (mesh_.member() + step) % mesh_.size(),
                from = (mesh_.member() + mesh_.size() - step) % mesh_.size();
      const Share theirs = share(k, to);
      slices_.for_range(theirs.begin, theirs.count, [&](const std::byte* input, std::byte*, size_t, int64_t count) {
        mesh_.send(to, link(k), input, bytes(count));
      });
      mesh_.receive(from, link(k), scratch(k, from), bytes(share(k, mesh_.member()).count), k);
    }
  }

  void fold(int64_t k) {
    const Share mine = share(k, mesh_.member());
    slices_.for_range(mine.begin, mine.count,
                      [&](const std::byte* input, std::byte* output, size_t offset, int64_t count) {
                        for (int m = 0; m < mesh_.size(); ++m) {
                          sources_[static_cast<size_t>(m)] = m == mesh_.member() ? input : scratch(k, m) + offset;
                        }
                        fold_(reduction_, sources_, count, output);
                      });
  }

  // A peer's result overwrites the input that was sent to it: the peer has it, or there would be no result.
  void exchange_results(int64_t k) {
    const Share mine = share(k, mesh_.member());
    for (int step = 1; step < mesh_.size(); ++step) {
      const int to = (mesh_.member() + step) % mesh_.size(),
                from = (mesh_.member() + mesh_.size() - step) % mesh_.size();
      slices_.for_range(mine.begin, mine.count, [&](const std::byte*, std::byte* output, size_t, int64_t count) {
        mesh_.send(to, link(k), output, bytes(count));
      });
      const Share theirs = share(k, from);
      slices_.for_range(theirs.begin, theirs.count, [&](const std::byte*, std::byte* output, size_t, int64_t count) {
        mesh_.receive(from, link(k), output, bytes(count));
      });
    }
  }

  Mesh& mesh_;
  MemberFold& fold_;
  const SliceList& slices_;
  const Reduction& reduction_;
  std::vector<std::byte>* const scratch_;
  const int64_t element_bytes_, share_elements_, chunk_elements_, chunks_;
  const int links_;
  std::vector<int> missing_;  // by chunk: peers whose share has not come
  std::vector<const std::byte*> sources_;
  int64_t folded_ = 0;
};

}  // namespace

Status gathered_allreduce(Mesh& mesh, const Kernels& kernels, MemberFold& fold, const SliceList& slices,
                          const Reduction& reduction, std::vector<std::byte>* scratch) {
  const size_t bytes = slices.bytes();
  const size_t stride = (bytes + 63) / 64 * 64;
  scratch->resize(std::max(scratch->size(), static_cast<size_t>(mesh.size()) * stride));
  std::vector<const std::byte*> sources(static_cast<size_t>(mesh.size()));
  mesh.begin("allreduce");
  std::byte* const mine = scratch->data() + static_cast<size_t>(mesh.member()) * stride;
  slices.for_range(0, slices.count(), [&](const std::byte* input, std::byte*, size_t offset, int64_t count) {
    kernels.copy(mine + offset, input, static_cast<size_t>(count) * slices.element_bytes(), false);
  });
  for (int m = 0; m < mesh.size(); ++m) {
    std::byte* const packed = scratch->data() + static_cast<size_t>(m) * stride;
    sources[static_cast<size_t>(m)] = packed;
    if (m == mesh.member()) continue;
    mesh.send(m, 0, mine, bytes);
    mesh.receive(m, 0, packed, bytes);
  }
  HVD_RETURN_IF_ERROR(mesh.drain());
  std::vector<const std::byte*> pieces(sources.size());
  slices.for_range(0, slices.count(), [&](const std::byte*, std::byte* output, size_t offset, int64_t count) {
    for (size_t m = 0; m < pieces.size(); ++m) pieces[m] = sources[m] + offset;
    fold(reduction, pieces, count, output);
  });
  return Status();
}

Status direct_allreduce(Mesh& mesh, MemberFold& fold, const SliceList& slices, const Reduction& reduction,
                        std::vector<std::byte>* scratch) {
  return DirectExchange(mesh, fold, slices, reduction, scratch).run();
}

}  // namespace hvd
