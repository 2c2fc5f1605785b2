// SPDX-License-Identifier: Apache-2.0
#include "negotiation/wire.h"

#include <algorithm>

namespace hvd {

int64_t TensorSpec::count() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

bool TensorSpec::possible() const {
  int64_t product = 1;
  for (const int64_t extent : shape) {
    // A zero does not excuse the others: parts of a shape are multiplied too.
    const int64_t factor = extent == 0 ? 1 : extent;
    if (extent < 0 || __builtin_mul_overflow(product, factor, &product) || product > (INT64_MAX >> 4)) return false;
  }
  return true;
}

std::string Descriptor::encode() const {
  Writer writer;
  writer.put(static_cast<uint8_t>(kind)).put(static_cast<uint8_t>(op)).put(process_set).put(root_rank);
  writer.put(prescale).put(postscale).put(static_cast<uint32_t>(tensors.size()));
  for (const TensorSpec& tensor : tensors) {
    writer.put(static_cast<uint8_t>(tensor.dtype)).put(static_cast<uint8_t>(tensor.shape.size()));
    for (const int64_t extent : tensor.shape) writer.put(extent);
  }
  writer.put(static_cast<uint32_t>(ranks.size()));
  for (const int32_t rank : ranks) writer.put(rank);
  if (place != HVD_ON_HOST) writer.put(static_cast<uint8_t>(place));
  return writer.take();
}

bool Descriptor::decode(std::string_view bytes, Descriptor* out) {
  Reader reader(bytes);
  const auto kind = reader.get<uint8_t>();
  const auto op = reader.get<uint8_t>();
  if (kind > HVD_RECEIVE || op > HVD_BITXOR) return false;
  out->kind = static_cast<hvd_kind>(kind);
  out->op = static_cast<ReduceOp>(op);
  out->process_set = reader.get<int32_t>();
  out->root_rank = reader.get<int32_t>();
  out->prescale = reader.get<double>();
  out->postscale = reader.get<double>();
  const auto tensors = reader.get<uint32_t>();
  out->tensors.clear();
  for (uint32_t i = 0; i < tensors; ++i) {
    TensorSpec tensor;
    const auto dtype = reader.get<uint8_t>();
    const auto ndim = reader.get<uint8_t>();
    if (reader.broken() || dtype > HVD_UINT64 || ndim > kMaxDimensions) return false;
    tensor.dtype = static_cast<DataType>(dtype);
    for (uint8_t d = 0; d < ndim; ++d) tensor.shape.push_back(reader.get<int64_t>());
    if (!tensor.possible()) return false;
    out->tensors.push_back(std::move(tensor));
  }
  const auto ranks = reader.get<uint32_t>();
  out->ranks.clear();
  for (uint32_t i = 0; i < ranks && !reader.broken(); ++i) out->ranks.push_back(reader.get<int32_t>());
  const bool on_host = reader.broken() || reader.at_end();
  const auto place = on_host ? uint8_t{HVD_ON_HOST} : reader.get<uint8_t>();
  if (!on_host && place != HVD_ON_CUDA) return false;
  out->place = static_cast<hvd_place>(place);
  return !reader.broken() && reader.at_end();
}

std::string describe_shape(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t d = 0; d < shape.size(); ++d) text += (d == 0 ? "" : ", ") + std::to_string(shape[d]);
  return text + "]";
}

const char* name_of(DataType dtype) {
  static constexpr const char* kNames[] = {"uint8",   "int8",    "int16", "int32",  "int64",  "float16", "bfloat16",
                                           "float32", "float64", "bool",  "uint16", "uint32", "uint64"};
  return dtype <= HVD_UINT64 ? kNames[dtype] : "unknown";
}

const char* name_of(ReduceOp op) {
  static constexpr const char* kNames[] = {"Average", "Sum",    "Adasum", "Min",   "Max",
                                           "Product", "BitAnd", "BitOr",  "BitXor"};
  return op <= HVD_BITXOR ? kNames[op] : "unknown";
}

const char* name_of(hvd_kind kind) {
  static constexpr const char* kNames[] = {"allreduce", "allgather",     "broadcast",       "barrier",
                                           "alltoall",  "reducescatter", "add_process_set", "remove_process_set",
                                           "send",      "receive"};
  return kind <= HVD_RECEIVE ? kNames[kind] : "unknown";
}

const char* name_of(hvd_place place) { return place == HVD_ON_CUDA ? "a GPU's" : "the host's"; }

namespace {

constexpr const char* kSameCall = "all ranks must make the same calls in the same order; look for a branch on the rank";
constexpr const char* kSameList = "all ranks must give the same list of tensors; look for a branch on the rank";
constexpr const char* kSameDtype = "all ranks must give the same dtype; look for a cast that only some ranks make";
constexpr const char* kSameShape =
    "all ranks must give the same shape; look for uneven batches (only allgather and alltoall take any number of "
    "rows), "
    "or a branch on the rank";
constexpr const char* kSameMessage =
    "the receiver must give as many elements as the sender; look at the shapes, and at the tags of other messages";
constexpr const char* kSamePlace =
    "all ranks must give tensors of one kind of device; look for a model or a tensor that some ranks left on the CPU";
constexpr const char* kSameArgument = "all ranks must give the same argument; look for a branch on the rank";
constexpr const char* kSameSets = "all ranks must add and remove the same process sets, in the same order";

Difference differ(const std::string& what, const std::string& expected, const std::string& seen, const char* hint) {
  return {"expected " + what + " " + expected + ", got " + seen, hint};
}

std::string shape_for_people(const Descriptor& descriptor, const TensorSpec& tensor) {
  std::string text = describe_shape(tensor.shape);
  if (is_ragged(descriptor.kind) && !tensor.shape.empty()) text.replace(1, 1, "any");
  return text;
}

// The first tensor of a group that differs is reported, whatever differs in those behind it. Both have the same number.
size_t first_difference(const Descriptor& expected, const Descriptor& seen) {
  const auto same = [](const TensorSpec& a, const TensorSpec& b) { return a.dtype == b.dtype && a.shape == b.shape; };
  const auto [first, _] = std::mismatch(expected.tensors.begin(), expected.tensors.end(), seen.tensors.begin(), same);
  return static_cast<size_t>(first - expected.tensors.begin());
}

std::string scale_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.17g", value);
  return text;
}

}  // namespace

Difference difference(const Descriptor& expected, const Descriptor& seen) {
  const bool same_count = expected.tensors.size() == seen.tensors.size();
  const size_t index = same_count ? first_difference(expected, seen) : 0;
  const TensorSpec* a = same_count && index < expected.tensors.size() ? &expected.tensors[index] : nullptr;
  const TensorSpec* b = a != nullptr ? &seen.tensors[index] : nullptr;
  const std::string which =
      expected.tensors.size() > 1 ? " of tensor " + std::to_string(index + 1) + " of the group" : "";
  if (a != nullptr && a->dtype != b->dtype)
    return differ("dtype" + which, name_of(a->dtype), name_of(b->dtype), kSameDtype);
  if (expected.kind != seen.kind) return differ("operation", name_of(expected.kind), name_of(seen.kind), kSameCall);
  if (!same_count) {
    return differ("number of tensors", std::to_string(expected.tensors.size()), std::to_string(seen.tensors.size()),
                  kSameList);
  }
  if (a != nullptr) {
    return differ("shape" + which, shape_for_people(expected, *a), shape_for_people(seen, *b),
                  expected.kind == HVD_SEND ? kSameMessage : kSameShape);
  }
  if (expected.place != seen.place) return differ("memory", name_of(expected.place), name_of(seen.place), kSamePlace);
  if (expected.prescale != seen.prescale) {
    return differ("prescale factor", scale_text(expected.prescale), scale_text(seen.prescale), kSameArgument);
  }
  if (expected.postscale != seen.postscale) {
    return differ("postscale factor", scale_text(expected.postscale), scale_text(seen.postscale), kSameArgument);
  }
  if (expected.op != seen.op) return differ("reduce operation", name_of(expected.op), name_of(seen.op), kSameArgument);
  if (expected.ranks != seen.ranks) {
    return differ("ranks of the set", describe_shape({expected.ranks.begin(), expected.ranks.end()}),
                  describe_shape({seen.ranks.begin(), seen.ranks.end()}), kSameSets);
  }
  if (expected.kind == HVD_REMOVE_PROCESS_SET && expected.root_rank != seen.root_rank) {
    return differ("process set", std::to_string(expected.root_rank), std::to_string(seen.root_rank), kSameSets);
  }
  if (expected.root_rank != seen.root_rank) {
    return differ("root rank", std::to_string(expected.root_rank), std::to_string(seen.root_rank), kSameArgument);
  }
  if (expected.process_set != seen.process_set) {
    return differ("process set", std::to_string(expected.process_set), std::to_string(seen.process_set), kSameArgument);
  }
  return {};
}

std::string make_frame(FrameKind kind, std::string_view payload) {
  Writer writer;
  writer.put(static_cast<uint32_t>(payload.size() + 1)).put(static_cast<uint8_t>(kind));
  std::string frame = writer.take();
  frame.append(payload);
  return frame;
}

bool FrameParser::next(FrameKind* kind, std::string* payload) {
  const size_t available = buffer_.size() - consumed_;
  if (broken_ || available < sizeof(uint32_t)) return false;
  uint32_t length = 0;
  std::memcpy(&length, buffer_.data() + consumed_, sizeof length);
  if (length == 0 || length > kMaxFrameBytes) {
    broken_ = true;
    return false;
  }
  if (available < sizeof length + length) return false;
  *kind = static_cast<FrameKind>(buffer_[consumed_ + sizeof length]);
  payload->assign(buffer_, consumed_ + sizeof length + 1, length - 1);
  consumed_ += sizeof length + length;
  if (consumed_ == buffer_.size() || consumed_ > (1u << 20)) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  return true;
}

}  // namespace hvd
