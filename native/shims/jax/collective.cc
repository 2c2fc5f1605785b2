// SPDX-License-Identifier: Apache-2.0
#include "shims/jax/collective.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

namespace hvd::jax {

namespace {

// XLA's dtype by hvd_dtype.
constexpr int32_t kXlaDtype[] = {6, 2, 3, 4, 5, 10, 16, 11, 12, 1, 7, 8, 9};

std::string_view string_of(const void* value) { return static_cast<const Span*>(value)->view(); }

// Attributes are int64, double or a string, as their names say.
bool read_attribute(std::string_view name, int32_t type, const void* value, Collective* collective) {
  if (name == "name" || name == "keys" || name == "checksums") {
    if (type != kStringAttribute) return false;
    if (name == "name") collective->name = string_of(value);
    if (name == "keys") collective->tree.keys = string_of(value);
    if (name == "checksums") read_checksums(string_of(value), &collective->tree);
    return true;
  }
  if (type != kScalarAttribute) return false;
  const void* const scalar = static_cast<const Scalar*>(value)->value;
  if (name == "prescale" || name == "postscale") {
    std::memcpy(name == "prescale" ? &collective->prescale : &collective->postscale, scalar, sizeof(double));
    return true;
  }
  int64_t number = 0;
  std::memcpy(&number, scalar, sizeof number);
  const auto narrow = static_cast<int32_t>(number);
  if (name == "kind") collective->kind = static_cast<hvd_kind>(narrow);
  if (name == "op") collective->op = narrow;
  if (name == "process_set") collective->process_set = narrow;
  if (name == "root_rank") collective->root_rank = narrow;
  if (name == "members") collective->members = narrow;
  if (name == "member") collective->member = narrow;
  if (name == "order_operands") collective->order_operands = narrow;
  return true;
}

// The buffers that are not tokens.
std::vector<const Buffer*> without_tokens(const Buffers& buffers) {
  std::vector<const Buffer*> found;
  for (int64_t i = 0; i < buffers.count; ++i) {
    if (buffers.buffers[i]->dtype != kToken) found.push_back(buffers.buffers[i]);
  }
  return found;
}

Code code_of(int code) {
  switch (code) {
    case HVD_INVALID_ARGUMENT:
    case HVD_DUPLICATE_NAME:
      return Code::kInvalidArgument;
    case HVD_MISMATCH:
    case HVD_REFUSED:
    case HVD_JOINED:
      return Code::kFailedPrecondition;
    case HVD_OUT_OF_MEMORY:
      return Code::kResourceExhausted;
    case HVD_RANK_LOST:
    case HVD_RANK_LEFT:
    case HVD_DEVICE_LOST:
      return Code::kUnavailable;
    case HVD_ABORTED:
    case HVD_DEADLOCK:
      return Code::kAborted;
    default:
      return Code::kUnknown;
  }
}

}  // namespace

bool rows_are_equal(const Collective& collective, size_t tensor, const hvd_result& result, hvd_status* status) {
  const int64_t expected = collective.rows[tensor] / (collective.kind == HVD_ALLGATHER ? 1 : collective.members);
  for (int32_t member = 0; member < collective.members; ++member) {
    if (result.rows[member] == expected) continue;
    shims::set_failure(status, HVD_MISMATCH,
                       std::string(collective.kind == HVD_ALLGATHER ? "allgather" : "alltoall") +
                           (collective.name.empty() ? "" : " of `" + collective.name + "`") +
                           ": a compiled function needs the same number of rows from every rank: expected " +
                           std::to_string(expected) + " as on this rank, got " + std::to_string(result.rows[member]) +
                           " from member " + std::to_string(member) +
                           "\nhint: call it outside of jax.jit, or fill up the rows");
    return false;
  }
  return true;
}

bool answer_question(const CallFrame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != kMetadataExtension) return false;
  Metadata* const metadata = reinterpret_cast<MetadataExtension*>(frame.extensions)->metadata;
  metadata->version.major = 0;
  metadata->version.minor = 1;
  metadata->traits = 0;
  return true;
}

Error* error_of(const Api* api, const hvd_status& status, const Tree& tree) {
  const std::string text =
      shims::text_of(status, status.code == HVD_MISMATCH ? in_words(status.text, tree) : status.text);
  ErrorCreate arguments{sizeof arguments, nullptr, text.c_str(), code_of(status.code)};
  return api->error_create(&arguments);
}

std::string read_frame(const CallFrame& frame, Collective* collective) {
  const Attributes& attributes = frame.attributes;
  for (int64_t i = 0; i < attributes.count; ++i) {
    const std::string_view name = attributes.names[i]->view();
    if (!read_attribute(name, attributes.types[i], attributes.values[i], collective)) {
      return "the compiled function holds an unknown kind of `" + std::string(name) + "`";
    }
  }
  // The first operands and the last result only order the calls; the operation does not use them.
  auto inputs = without_tokens(frame.operands), outputs = without_tokens(frame.results);
  const auto ordering = static_cast<size_t>(collective->order_operands);
  if (inputs.size() < ordering || inputs.size() - ordering + 1 != outputs.size()) {
    return "the compiled function has not as many results as operands";
  }
  inputs.erase(inputs.begin(), inputs.begin() + collective->order_operands);
  outputs.pop_back();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto* dtype = std::find(std::begin(kXlaDtype), std::end(kXlaDtype), inputs[i]->dtype);
    if (dtype == std::end(kXlaDtype)) return "no operation takes XLA's dtype " + std::to_string(inputs[i]->dtype);
    collective->tensors.push_back({inputs[i]->data, outputs[i]->data, inputs[i]->dims,
                                   static_cast<int32_t>(inputs[i]->rank),
                                   static_cast<int32_t>(dtype - std::begin(kXlaDtype))});
    collective->rows.push_back(inputs[i]->rank > 0 ? inputs[i]->dims[0] : 0);
  }
  if (collective->tensors.empty()) return "";
  for (std::array<int64_t, 2>& shape : collective->tree.shapes) {
    collective->tensors.push_back({shape.data(), shape.data(), shape.data(), static_cast<int32_t>(shape.size()),
                                   collective->tensors.front().dtype});
    collective->rows.push_back(0);
  }
  return "";
}

}  // namespace hvd::jax
