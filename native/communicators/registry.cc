// SPDX-License-Identifier: Apache-2.0
// The choice among the rows (step 7).
#include "communicators/registry.h"

#include <algorithm>

namespace hvd {

#define HVD_COMMUNICATOR(row) extern const CommunicatorRow row;
#include "communicators/rows.h"
#undef HVD_COMMUNICATOR
extern const DeviceRow kNcclRow;

namespace {

#define HVD_COMMUNICATOR(row) &row,
constexpr const CommunicatorRow* kRows[] = {
#include "communicators/rows.h"
};
#undef HVD_COMMUNICATOR

constexpr const DeviceRow* kDeviceRows[] = {&kNcclRow};

constexpr char kAuto[] = "auto";

bool serves(const CommunicatorRow& row, const Topology& members) {
  return row.why_unavailable().empty() && row.why_unfit(members).empty();
}

Status unavailable(const std::string& wanted, const std::string& why, const std::string& hint) {
  return {HVD_UNAVAILABLE, "HOROVOD_TRANSPORT=" + wanted + " cannot be used: " + why + "\nhint: " + hint};
}

std::string names_of_rows() {
  std::string names = kAuto;
  for (const CommunicatorRow* row : kRows) names += std::string(", ") + row->name;
  return names;
}

}  // namespace

std::span<const CommunicatorRow* const> communicator_rows() { return kRows; }

const DeviceRow* device_row(hvd_place place) {
  const auto found = std::ranges::find(kDeviceRows, place, &DeviceRow::place);
  return found == std::end(kDeviceRows) ? nullptr : *found;
}

Members some_of(const Members& members, std::span<const int> places) {
  Members some;
  some.topology = members.topology.among(places);
  for (const int place : places) {
    if (place == members.member) some.member = some.size();
    some.ranks.push_back(members.ranks[static_cast<size_t>(place)]);
  }
  return some;
}

Status choose_communicator(const std::string& wanted, const Topology& members, bool must, const CommunicatorRow** out) {
  const CommunicatorRow* named = nullptr;
  if (wanted != kAuto) {
    const auto found = std::ranges::find_if(kRows, [&](const CommunicatorRow* row) { return wanted == row->name; });
    if (found == std::end(kRows)) {
      return unavailable(wanted, "there is no such communicator", "use one of " + names_of_rows());
    }
    named = *found;
    if (const std::string why = named->why_unavailable(); !why.empty()) {
      return unavailable(wanted, why, "HOROVOD_TRANSPORT=auto takes what there is");
    }
  }
  const std::string unfit = named == nullptr ? "" : named->why_unfit(members);
  if (named != nullptr && unfit.empty()) {
    *out = named;
    return {};
  }
  if (named != nullptr && must && members.size() > 1) {
    return unavailable(wanted, unfit, "HOROVOD_TRANSPORT=auto takes what fits");
  }
  for (const CommunicatorRow* row : kRows) {
    if (!serves(*row, members)) continue;
    *out = row;
    return {};
  }
  return {HVD_INTERNAL, "no communicator can join these ranks"};
}

}  // namespace hvd
