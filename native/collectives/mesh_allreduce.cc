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
                 Exchanged<std::byte>* scratch, const Grid& grid, Cut cut)
      : mesh_(mesh),
        fold_(fold),
        slices_(slices),
        reduction_(reduction),
        scratch_(scratch),
        grid_(grid),
        group_(grid_.group_of(mesh.member())),
        place_(grid_.place_of(mesh.member())),
        element_bytes_(static_cast<int64_t>(slices.element_bytes())),
        chunk_elements_(cut.elements),
        chunks_(plan::pieces_of(slices.count(), chunk_elements_)),
        ahead_(std::min(cut.ahead, chunks_)),
        links_(plan::links_for(slices.bytes(), mesh.links_per_peer())),
        missing_(kKinds * static_cast<size_t>(chunks_), 0),
        results_end_(static_cast<size_t>(chunks_), 0) {
    const Share longest = share_of(std::min(chunk_elements_, slices.count()), grid_.columns(), 0, unit_elements());
    row_stride_ = bytes(longest.count);
    column_stride_ = bytes(part_of(longest, 0).count);
    column_scratch_ = static_cast<size_t>(row_size() * ahead_) * row_stride_;
    const size_t in_columns = grid_.groups() == 1 ? 0 : static_cast<size_t>(grid_.groups() * ahead_) * column_stride_;
    scratch_->resize(std::max(scratch_->size(), column_scratch_ + in_columns));
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
  // Messages that come: peers' shares of a chunk, the same in the column, and the results of both. A tag is kind and
  // chunk.
  enum Kind : int64_t { kShares, kParts, kPartResults, kResults, kKinds };
  // The next step of the chunk that is due.
  enum class Step : uint8_t { kExpect, kFold, kFoldParts, kSendResults };

  // With the last one, everything has also been sent. After each one the caller may wait for others of its host, which
  // may wait for peers that wait for this one's result: it must have left. What stands behind it on its link, or on
  // another link, must not be waited for: its peer may be waiting for others of its host, too.
  bool is_finished(int64_t k) const {
    if (k >= chunks_ - 1) return done_ == chunks_ && mesh_.idle();
    return done_ > k && has_all(kResults, k) && mesh_.have_left(link(k), results_end_[static_cast<size_t>(k)]);
  }
  int64_t unit_elements() const { return plan::unit_elements(slices_.element_bytes()); }
  size_t bytes(int64_t count) const { return static_cast<size_t>(count * element_bytes_); }
  int link(int64_t k) const { return static_cast<int>(k % links_); }
  int row_size() const { return grid_.row_size(group_); }
  bool has_all(Kind kind, int64_t k) const { return missing_[static_cast<size_t>(kind * chunks_ + k)] == 0; }

  // Of chunk k, what the members of a column have; none beyond the columns.
  Share share(int64_t k, int column) const {
    const int64_t begin = k * chunk_elements_;
    Share part = share_of(std::min(chunk_elements_, slices_.count() - begin), grid_.columns(), column, unit_elements());
    part.begin += begin;
    return part;
  }
  // Of a share, what a group's member of the column has.
  Share part_of(Share share, int group) const {
    Share part = share_of(share.count, grid_.groups(), group, unit_elements());
    part.begin += share.begin;
    return part;
  }
  Share part(int64_t k, int group) const { return part_of(share(k, place_), group); }
  std::byte* row_scratch(int64_t k, int place) const {
    return scratch_->data() + static_cast<size_t>(place * ahead_ + k % ahead_) * row_stride_;
  }
  std::byte* column_scratch(int64_t k, int group) const {
    return scratch_->data() + column_scratch_ + static_cast<size_t>(group * ahead_ + k % ahead_) * column_stride_;
  }

  // Calls visit(ahead, behind) with the places of others: those that a member sends to and receives from by turns.
  template <class Visit>
  static void for_others(int size, int own, const Visit& visit) {
    for (int step = 1; step < size; ++step) visit((own + step) % size, (own + size - step) % size);
  }
  template <class Visit>
  void for_row(const Visit& visit) const {
    for_others(row_size(), place_, visit);
  }
  template <class Visit>
  void for_column(const Visit& visit) const {
    for_others(place_ < grid_.columns() ? grid_.groups() : 1, group_, visit);
  }
  int in_row(int place) const { return grid_.at(group_, place); }
  int in_column(int group) const { return grid_.at(group, place_); }

  int64_t expect(Kind kind, int64_t k) {
    ++missing_[static_cast<size_t>(kind * chunks_ + k)];
    return kind * chunks_ + k;
  }
  void receive(int from, int64_t k, std::byte* to, int64_t count, Kind kind) {
    if (count > 0) mesh_.receive(from, link(k), to, bytes(count), expect(kind, k));
  }
  void receive_results(int from, int64_t k, Share range, Kind kind) {
    if (range.count == 0) return;
    mesh_.receive_parts(from, link(k), slices_.outputs(range.begin, range.count), expect(kind, k));
  }
  void send_results(int to, int64_t k, Share range) {
    const std::vector<Mesh::Output> results = slices_.outputs(range.begin, range.count);
    mesh_.send_parts(to, link(k), std::vector<Mesh::Input>(results.begin(), results.end()));
  }

  Status handle_arrivals() {
    for (const Mesh::Arrival& arrival : arrivals_) --missing_[static_cast<size_t>(arrival.tag)];
    queue_what_is_due();
    return Status();
  }

  // Follows the order of the steps, as the links carry them. A peer's result is expected when its turn comes, even if
  // this member's share is not folded yet: MPI copies a message once more if it arrives before its receive.
  void queue_what_is_due() {
    for (;;) {
      const int64_t most_shared = std::min(chunks_, done_ + ahead_);
      if (shared_ < std::min(offered_, most_shared)) {
        exchange_shares(shared_++);
      } else if (shared_ < most_shared || done_ == chunks_ || !take_step(done_)) {
        return;
      }
    }
  }

  // False: what it needs has not come.
  bool take_step(int64_t k) {
    switch (step_) {
      case Step::kExpect:
        expect_results(k);
        step_ = Step::kFold;
        return true;
      case Step::kFold:
        if (!has_all(kShares, k)) return false;
        fold_row(k);
        if (grid_.groups() > 1) exchange_parts(k);
        step_ = grid_.groups() > 1 ? Step::kFoldParts : Step::kSendResults;
        return true;
      case Step::kFoldParts:
        if (!has_all(kParts, k)) return false;
        fold_column(k);
        for_column([&](int to, int) { send_results(in_column(to), k, part(k, group_)); });
        step_ = Step::kSendResults;
        return true;
      case Step::kSendResults:
        if (!has_all(kPartResults, k)) return false;
        for_row([&](int to, int) { send_results(in_row(to), k, share(k, place_)); });
        results_end_[static_cast<size_t>(done_++)] = mesh_.queued();
        step_ = Step::kExpect;
        return true;
    }
    return false;
  }

  // My peers' shares of chunk k to them, and theirs of my share into scratch, where chunk k - ahead has been folded by
  // now.
  void exchange_shares(int64_t k) {
    const int64_t mine = share(k, place_).count;
    for_row([&](int to, int from) {
      const Share theirs = share(k, to);
      mesh_.send_parts(in_row(to), link(k), slices_.inputs(theirs.begin, theirs.count));
      receive(in_row(from), k, row_scratch(k, from), mine, kShares);
    });
  }

  // A peer's result overwrites the input that was sent to it: the peer has it, or there would be no result. So in the
  // column.
  void expect_results(int64_t k) {
    for_row([&](int, int from) { receive_results(in_row(from), k, share(k, from), kResults); });
    for_column(
        [&](int, int from) { receive(in_column(from), k, column_scratch(k, from), part(k, group_).count, kParts); });
  }

  void fold_row(int64_t k) {
    const FloatState state;
    const Share mine = share(k, place_);
    sources_.resize(static_cast<size_t>(row_size()));
    slices_.for_range(mine.begin, mine.count,
                      [&](const std::byte* input, std::byte* output, size_t offset, int64_t count) {
                        for (int p = 0; p < row_size(); ++p) {
                          sources_[static_cast<size_t>(p)] = p == place_ ? input : row_scratch(k, p) + offset;
                        }
                        if (grid_.groups() == 1) {
                          fold_.all(reduction_, sources_, count, output);
                        } else {
                          fold_.row(reduction_, sources_, count, output);
                        }
                      });
  }

  void exchange_parts(int64_t k) {
    for_column([&](int to, int from) {
      send_results(in_column(to), k, part(k, to));
      receive_results(in_column(from), k, part(k, from), kPartResults);
    });
  }

  void fold_column(int64_t k) {
    const FloatState state;
    const Share mine = part(k, group_);
    sources_.resize(static_cast<size_t>(grid_.groups()));
    slices_.for_range(mine.begin, mine.count, [&](const std::byte*, std::byte* output, size_t offset, int64_t count) {
      for (int g = 0; g < grid_.groups(); ++g) {
        sources_[static_cast<size_t>(g)] = g == group_ ? output : column_scratch(k, g) + offset;
      }
      fold_.column(reduction_, sources_, count, output);
    });
  }

  Mesh& mesh_;
  MemberFold& fold_;
  const SliceList slices_;
  const Reduction reduction_;
  Exchanged<std::byte>* const scratch_;
  const Grid grid_;
  const int group_, place_;  // of this member
  const int64_t element_bytes_, chunk_elements_, chunks_, ahead_;
  const int links_;
  size_t row_stride_, column_stride_, column_scratch_;  // of scratch: the longest share and part, where parts begin
  std::vector<int> missing_;                            // by kind and chunk: what is expected and has not come
  std::vector<uint64_t> results_end_;                   // by chunk: the mesh's number of what is queued next
  std::vector<const std::byte*> sources_;
  std::vector<Mesh::Arrival> arrivals_;
  int64_t offered_ = 0, shared_ = 0, done_ = 0;  // how many chunks
  Step step_ = Step::kExpect;                    // of chunk done_
};

}  // namespace

Status gathered_allreduce(Mesh& mesh, const Kernels& kernels, MemberFold& fold, const SliceList& slices,
                          const Reduction& reduction, Exchanged<std::byte>* scratch, const Grid& grid) {
  const int group = grid.group_of(mesh.member()), place = grid.place_of(mesh.member());
  const int row = grid.row_size(group), groups = grid.groups();
  const size_t bytes = slices.bytes(), stride = plan::round_up_to_units(bytes);
  scratch->resize(std::max(scratch->size(), static_cast<size_t>(row + (groups == 1 ? 0 : groups)) * stride));
  const auto of_place = [&](int p) { return scratch->data() + static_cast<size_t>(p) * stride; };
  const auto of_group = [&](int g) { return scratch->data() + static_cast<size_t>(row + g) * stride; };
  mesh.begin("allreduce");
  slices.for_range(0, slices.count(), [&](const std::byte* input, std::byte*, size_t offset, int64_t count) {
    kernels.copy(of_place(place) + offset, input, static_cast<size_t>(count) * slices.element_bytes(), false);
  });
  for (int p = 0; p < row; ++p) {
    if (p == place) continue;
    mesh.send(grid.at(group, p), 0, of_place(place), bytes);
    mesh.receive(grid.at(group, p), 0, of_place(p), bytes);
  }
  HVD_RETURN_IF_ERROR(mesh.drain());
  std::vector<const std::byte*> sources;
  for (int p = 0; p < row; ++p) sources.push_back(of_place(p));
  if (groups > 1) {
    fold.row(reduction, sources, slices.count(), of_group(group));
    sources.clear();
    for (int g = 0; g < groups; ++g) {
      sources.push_back(of_group(g));
      if (g == group) continue;
      grid.for_listeners(mesh.member(), g, [&](int to) { mesh.send(to, 0, of_group(group), bytes); });
      mesh.receive(grid.speaker(g, mesh.member()), 0, of_group(g), bytes);
    }
    HVD_RETURN_IF_ERROR(mesh.drain());
  }
  std::vector<const std::byte*> pieces(sources.size());
  slices.for_range(0, slices.count(), [&](const std::byte*, std::byte* output, size_t offset, int64_t count) {
    for (size_t m = 0; m < pieces.size(); ++m) pieces[m] = sources[m] + offset;
    if (groups == 1) {
      fold.all(reduction, pieces, count, output);
    } else {
      fold.column(reduction, pieces, count, output);
    }
  });
  return Status();
}

Status direct_allreduce(Mesh& mesh, MemberFold& fold, const SliceList& slices, const Reduction& reduction,
                        Exchanged<std::byte>* scratch, const Grid& grid) {
  const int64_t elements = plan::direct_chunk_elements(slices.count(), slices.element_bytes(), grid.columns(),
                                                       grid.groups() > 1, mesh.message_bytes());
  DirectExchange exchange(mesh, fold, slices, reduction, scratch, grid, {elements, 2});
  const int64_t last = (slices.count() - 1) / elements;
  HVD_RETURN_IF_ERROR(exchange.offer(last));
  return exchange.finish(last);
}

std::unique_ptr<PiecewiseAllreduce> direct_allreduce_in_pieces(Mesh& mesh, MemberFold& fold, const SliceList& slices,
                                                               const Reduction& reduction,
                                                               Exchanged<std::byte>* scratch, const Grid& grid,
                                                               Cut cut) {
  return std::make_unique<DirectExchange>(mesh, fold, slices, reduction, scratch, grid, cut);
}

}  // namespace hvd
