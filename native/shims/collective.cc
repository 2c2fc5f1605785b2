// SPDX-License-Identifier: Apache-2.0
#include "shims/collective.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "shims/watch.h"

namespace hvd::shims {

namespace {

constexpr size_t kUsualTensorBytes = 48;  // in a key, with four dimensions

// Two requests with equal keys differ in addresses and in what is given at each submission. All fields are named, so
// that one which is added to the request does not compile before it has its place here.
std::string key_of(const hvd_request& request) {
  const auto& [size, kind, op, process_set, root_rank, flags, ntensors, tensor_size, request_name, tensors, prescale,
               postscale, done, user, splits, nsplits, reserved, place, device, tag] = request;
  const std::string_view name = request_name == nullptr ? "" : request_name;
  const int32_t fixed[] = {kind,
                           op,
                           process_set,
                           root_rank,
                           place,
                           device,
                           tag,
                           static_cast<int32_t>(ntensors),
                           splits == nullptr ? -1 : static_cast<int32_t>(nsplits),
                           static_cast<int32_t>(name.size())};
  const double scales[] = {prescale, postscale};
  std::string key;
  const auto add = [&key](const void* bytes, size_t count) {
    if (count > 0) key.append(static_cast<const char*>(bytes), count);
  };
  key.reserve(sizeof fixed + sizeof scales + name.size() + kUsualTensorBytes * ntensors);
  add(fixed, sizeof fixed);
  add(scales, sizeof scales);
  key += name;
  for (const hvd_tensor& tensor : std::span(tensors, ntensors)) {
    const auto& [input, output, shape, ndim, dtype, output_bytes] = tensor;
    add(&ndim, sizeof ndim);
    add(&dtype, sizeof dtype);
    add(&output_bytes, sizeof output_bytes);
    add(shape, sizeof(int64_t) * static_cast<size_t>(ndim));
  }
  if (splits != nullptr) add(splits, sizeof(int64_t) * nsplits);
  return key;
}

int submit_entry(hvd_context* context, hvd_entry* entry, const hvd_request& request, void* stream, hvd_handle* handle,
                 hvd_status* status) {
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const hvd_tensor& tensor : std::span(request.tensors, request.ntensors)) {
    inputs.push_back(tensor.input);
    outputs.push_back(tensor.output);
  }
  return hvd_submit_entry_on(context, entry, inputs.data(), outputs.data(), request.flags, request.user, stream, handle,
                             status);
}

// Submits a request that may not come again. On a GPU, only one that is prepared can be given a stream.
int submit_once(hvd_context* context, const hvd_request& request, void* stream, hvd_handle* handle,
                hvd_status* status) {
  if (request.place == HVD_ON_HOST) return hvd_submit(context, &request, handle, status);
  hvd_entry* entry = nullptr;
  int code = hvd_prepare(context, &request, &entry, status);
  if (code != HVD_OK) return code;
  code = submit_entry(context, entry, request, stream, handle, status);
  hvd_release_entry(context, entry);
  return code;
}

// True if the call was wrong, or if this rank or its GPU could not prepare it: the peers do not know of that yet.
bool is_of_this_rank(int code) {
  return code == HVD_INVALID_ARGUMENT || code == HVD_UNAVAILABLE || code == HVD_OUT_OF_MEMORY || code == HVD_INTERNAL ||
         code == HVD_DEVICE_LOST;
}

}  // namespace

hvd_status new_status() {
  hvd_status status{};
  status.size = sizeof status;
  status.failed_rank = -1;
  return status;
}

int set_failure(hvd_status* status, int code, std::string_view text) {
  status->code = code;
  status->text[text.copy(status->text, sizeof status->text - 1)] = '\0';
  return code;
}

std::string text_of(const hvd_status& status, std::string_view text) {
  const char* const name = hvd_code_name(status.code);
  return std::string(text) + (name == nullptr ? "" : std::string("\nmore: horovodrun --explain ") + name);
}

hvd_request request_of(const Collective& collective, std::span<const hvd_tensor> tensors) {
  hvd_request request{};
  request.size = sizeof request;
  request.kind = collective.kind;
  request.op = collective.op;
  request.process_set = collective.process_set;
  request.root_rank = collective.root_rank;
  request.ntensors = static_cast<uint32_t>(tensors.size());
  request.tensor_size = sizeof(hvd_tensor);
  request.name = collective.name.empty() ? nullptr : collective.name.c_str();
  request.tensors = tensors.data();
  request.prescale = collective.prescale;
  request.postscale = collective.postscale;
  return request;
}

int find_device(hvd_context* context, std::span<const hvd_tensor> tensors, void* stream, int32_t* device,
                hvd_status* status) {
  for (const hvd_tensor& tensor : tensors) {
    const bool has_elements = std::find(tensor.shape, tensor.shape + tensor.ndim, 0) == tensor.shape + tensor.ndim;
    if (has_elements) return hvd_device_of(context, tensor.input, device, status);
  }
  return hvd_device_of_stream(context, stream, device, status);
}

int EntryCache::submit(Generation* generation, const hvd_request& request, void* stream, hvd_handle* handle,
                       hvd_status* status) {
  watch(request);
  const std::string key = key_of(request);
  Entry entry;  // other calls may still submit it when the cache lets go of it
  int code = find(generation, key, request, &entry, status);
  if (code != HVD_OK) return code;
  if (entry != nullptr) {
    code = submit_entry(generation->context, entry.get(), request, stream, handle, status);
    if (code != HVD_INVALID_ARGUMENT || request.process_set == 0) return code;
    // The process set has been removed since, and another one may have its number.
    const std::lock_guard lock(mutex_);
    known_.erase(key);
  }
  return submit_once(generation->context, request, stream, handle, status);
}

// The prepared request of a key; null for the first call.
int EntryCache::find(Generation* generation, const std::string& key, const hvd_request& request, Entry* entry,
                     hvd_status* status) {
  const std::lock_guard lock(mutex_);
  if (generation_ != generation->number) known_.clear();
  generation_ = generation->number;
  auto found = known_.find(key);
  const bool is_first = found == known_.end();
  if (is_first && known_.size() >= most_) forget_old_half();
  if (is_first) found = known_.try_emplace(key).first;
  Known& known = found->second;
  known.used = ++calls_;
  if (is_first) return HVD_OK;
  int code = HVD_OK;
  if (known.entry == nullptr) known.entry = generation->prepare(request, &code, status);
  *entry = known.entry;
  return code;
}

// Then the cache takes as many new keys until the next time.
void EntryCache::forget_old_half() {
  std::vector<uint64_t> uses;
  for (const auto& [key, known] : known_) uses.push_back(known.used);
  const auto middle = uses.begin() + static_cast<ptrdiff_t>(uses.size() / 2);
  std::nth_element(uses.begin(), middle, uses.end());
  std::erase_if(known_, [last = *middle](const auto& item) { return item.second.used <= last; });
}

size_t EntryCache::size() {
  const std::lock_guard lock(mutex_);
  return known_.size();
}

void EntryCache::clear() {
  const std::lock_guard lock(mutex_);
  known_.clear();
}

void refuse(hvd_context* context, const std::string& name, int32_t process_set, const char* why) {
  hvd_refuse(context, name.empty() ? nullptr : name.c_str(), process_set, why, nullptr);
}

void tell_refusal(hvd_context* context, const std::string& name, int32_t process_set, const hvd_status& status) {
  if (!is_of_this_rank(status.code)) return;
  // The text for the peers begins with rank and operation, too.
  const std::string shown = name.empty() ? ", unnamed " : ", `" + name + "`";
  const char* const found = std::strstr(status.text, shown.c_str());
  const char* const end = found == nullptr ? nullptr : std::strstr(found + shown.size(), ": ");
  refuse(context, name, process_set, end == nullptr ? status.text : end + 2);
}

}  // namespace hvd::shims
