// SPDX-License-Identifier: Apache-2.0
// Allreduce over a Mesh (step 7); the algorithms stand in mesh_allreduce.h.
#include "collectives/mesh_allreduce.h"

#include <algorithm>
#include <vector>

#include "collectives/plan.h"
#include "platform/float_state.h"

namespace hvd {

namespace {

class DirectExchange final : public PiecewiseAllreduce {
 public:
  DirectExchange(Mesh& mesh, MemberFold& fold, const SliceList& slices, const Reduction& reduction,
                 Exchanged<std::byte>* scratch, Cut cut)
      : mesh_(mesh),
        fold_(fold),
        slices_(slices),
        reduction_(reduction),
        scratch_(scratch),
        element_bytes_(static_cast<int64_t>(slices.element_bytes())),
        chunk_elements_(cut.elements),
        chunks_(plan::pieces_of(slices.count(), chunk_elements_)),
        ahead_(std::min(cut.ahead, chunks_)),
        links_(plan::links_for(slices.bytes(), mesh.links_per_peer())),
        missing_shares_(static_cast<size_t>(chunks_), mesh.size() - 1),
        missing_results_(static_cast<size_t>(chunks_), 0),
        results_end_(static_cast<size_t>(chunks_), 0),
        sources_(static_cast<size_t>(mesh.size())) {
    const int64_t unit = unit_elements();
    const int64_t longest = std::min(chunk_elements_, slices.count());
    stride_ = static_cast<size_t>(share_of(longest, mesh.size(), 0, unit).count * element_bytes_);
    const size_t needed = static_cast<size_t>(mesh.size() * ahead_) * stride_;
    scratch_->resize(std::max(scratch_->size(), needed));
    mesh_.begin("allreduce");
  }

  Status offer(int64_t piece) override {
    offered_ = std::min(chunks_, piece + 1);
    queue_what_is_due();
    if (mesh_.idle()) return Status();
    arrivals_.clear();
    HVD_RETURN_IF_ERROR(mesh_.move(&arrivals_));
    return handle_arrivals();
  }

  Status finish(int64_t piece) override {
    while (!is_finished(piece)) {
      arrivals_.clear();
      HVD_RETURN_IF_ERROR(mesh_.advance(&arrivals_));
      HVD_RETURN_IF_ERROR(handle_arrivals());
    }
    return Status();
  }

 private:
  // With the last one, everything has also been sent. After each one the caller may wait for others of its host, which
  // may wait for peers that wait for this one's result: it must have left. What stands behind it on its link, or on
  // another link, must not be waited for: its peer may be waiting for others of its host, too.
  bool is_finished(int64_t k) const {
    if (k >= chunks_ - 1) return folded_ == chunks_ && mesh_.idle();
    return folded_ > k && missing_results_[static_cast<size_t>(k)] == 0 &&
           mesh_.have_left(link(k), results_end_[static_cast<size_t>(k)]);
  }
  int64_t unit_elements() const { return plan::unit_elements(slices_.element_bytes()); }
  int link(int64_t k) const { return static_cast<int>(k % links_); }
  Share share(int64_t k, int member) const {
    const int64_t begin = k * chunk_elements_;
    Share part = share_of(std::min(chunk_elements_, slices_.count() - begin), mesh_.size(), member, unit_elements());
    part.begin += begin;
    return part;
  }
  std::byte* scratch(int64_t k, int member) const {
    return scratch_->data() + static_cast<size_t>(member * ahead_ + k % ahead_) * stride_;
  }
  size_t bytes(int64_t count) const { return static_cast<size_t>(count * element_bytes_); }

  Status handle_arrivals() {
    for (const Mesh::Arrival& arrival : arrivals_) {
      if (arrival.tag < chunks_) {
        --missing_shares_[static_cast<size_t>(arrival.tag)];
      } else {
        --missing_results_[static_cast<size_t>(arrival.tag - chunks_)];
      }
    }
    queue_what_is_due();
    return Status();
  }

  // Follows the order of the chunks, as the links carry them. A peer's result is expected when its turn comes, even if
  // this member's share is not folded yet: MPI copies a message once more if it arrives before its receive.
  void queue_what_is_due() {
    for (;;) {
      const int64_t most_shared = std::min(chunks_, folded_ + ahead_);
      if (shared_ < std::min(offered_, most_shared)) {
        exchange_shares(shared_++);
      } else if (shared_ < most_shared || folded_ == chunks_) {
        return;
      } else if (expected_ == folded_) {
        expect_results(expected_++);
      } else if (missing_shares_[static_cast<size_t>(folded_)] == 0) {
        fold(folded_);
        send_results(folded_++);
      } else {
        return;
      }
    }
  }

  // My peers' shares of chunk k to them, and theirs of my share into scratch, where chunk k - ahead has been folded by
  // now.
  void exchange_shares(int64_t k) {
    for (int step = 1; step < mesh_.size(); ++step) {
      const int to = (mesh_.member() + step) % mesh_.size(),
                from = (mesh_.member() + mesh_.size() - step) % mesh_.size();
      const Share theirs = share(k, to);
      mesh_.send_parts(to, link(k), slices_.inputs(theirs.begin, theirs.count));
      const size_t mine = bytes(share(k, mesh_.member()).count);
      if (mine == 0) --missing_shares_[static_cast<size_t>(k)];
      mesh_.receive(from, link(k), scratch(k, from), mine, mine == 0 ? Mesh::kNoTag : k);
    }
  }

  void fold(int64_t k) {
    const FloatState state;
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
  void expect_results(int64_t k) {
    for (int step = 1; step < mesh_.size(); ++step) {
      const int from = (mesh_.member() + mesh_.size() - step) % mesh_.size();
      const Share theirs = share(k, from);
      if (theirs.count == 0) continue;
      ++missing_results_[static_cast<size_t>(k)];
      mesh_.receive_parts(from, link(k), slices_.outputs(theirs.begin, theirs.count), chunks_ + k);
    }
  }

  void send_results(int64_t k) {
    const Share mine = share(k, mesh_.member());
    const std::vector<Mesh::Output> results = slices_.outputs(mine.begin, mine.count);
    for (int step = 1; step < mesh_.size(); ++step) {
      const int to = (mesh_.member() + step) % mesh_.size();
      mesh_.send_parts(to, link(k), std::vector<Mesh::Input>(results.begin(), results.end()));
    }
    results_end_[static_cast<size_t>(k)] = mesh_.queued();
  }

  Mesh& mesh_;
  MemberFold& fold_;
  const SliceList slices_;
  const Reduction reduction_;
  Exchanged<std::byte>* const scratch_;
  const int64_t element_bytes_, chunk_elements_, chunks_, ahead_;
  const int links_;
  size_t stride_;                                      // of scratch: the longest share
  std::vector<int> missing_shares_, missing_results_;  // by chunk: what has not come
  std::vector<uint64_t> results_end_;                  // by chunk: the mesh's number of what is queued next
  std::vector<const std::byte*> sources_;
  std::vector<Mesh::Arrival> arrivals_;
  int64_t offered_ = 0, shared_ = 0, expected_ = 0, folded_ = 0;  // how many chunks
};

}  // namespace

Status gathered_allreduce(Mesh& mesh, const Kernels& kernels, MemberFold& fold, const SliceList& slices,
                          const Reduction& reduction, Exchanged<std::byte>* scratch) {
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
                        Exchanged<std::byte>* scratch) {
  const int64_t elements =
      plan::direct_chunk_elements(slices.count(), slices.element_bytes(), mesh.size(), mesh.message_bytes());
  DirectExchange exchange(mesh, fold, slices, reduction, scratch, {elements, 2});
  const int64_t last = (slices.count() - 1) / elements;
  HVD_RETURN_IF_ERROR(exchange.offer(last));
  return exchange.finish(last);
}

std::unique_ptr<PiecewiseAllreduce> direct_allreduce_in_pieces(Mesh& mesh, MemberFold& fold, const SliceList& slices,
                                                               const Reduction& reduction,
                                                               Exchanged<std::byte>* scratch, Cut cut) {
  return std::make_unique<DirectExchange>(mesh, fold, slices, reduction, scratch, cut);
}

}  // namespace hvd
