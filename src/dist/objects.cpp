#include "accelerant/dist/collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "dist/agreement.h"
#include "dist/groups.h"
#include "dist/message.h"
#include "dist/transport.h"
#include "dist/world_access.h"

namespace accelerant::dist {
namespace {

using nlohmann::json;

// A message that fits takes one exchange, including its length. At this size latency hardly depends
// on the size, and most descriptions of batches fit.
constexpr int64_t kFirstPart = 512;
constexpr int64_t kLengthBytes = sizeof(int64_t);
constexpr int64_t kInline = kFirstPart - kLengthBytes;

char* bytes_of(const at::Tensor& tensor) { return static_cast<char*>(tensor.mutable_data_ptr()); }

std::size_t as_size(int64_t n) { return static_cast<std::size_t>(n); }

std::string to_bytes(const json& value) {
  std::string bytes;
  json::to_cbor(value,
                bytes);  // unlike JSON text, it keeps nan, inf and strings that are not UTF-8
  return bytes;
}

}  // namespace

std::vector<std::string> exchange_messages(const World& world, const char* name,
                                           const std::string& bytes) {
  ++WorldAccess::groups(world).messages;
  const auto length = static_cast<int64_t>(bytes.size());
  const int64_t size = world.size();
  at::Tensor own = at::zeros({kFirstPart}, at::kByte);
  std::memcpy(bytes_of(own), &length, kLengthBytes);
  std::memcpy(bytes_of(own) + kLengthBytes, bytes.data(), as_size(std::min(length, kInline)));
  at::Tensor all = at::empty({size * kFirstPart}, at::kByte);
  all_gather(world, Channel::control, name, all, own);

  std::vector<int64_t> lengths;
  std::vector<std::string> messages;
  for (int64_t rank = 0; rank < size; ++rank) {
    const char* part = bytes_of(all) + rank * kFirstPart;
    std::memcpy(&lengths.emplace_back(), part, kLengthBytes);
    messages.emplace_back(part + kLengthBytes, as_size(std::min(lengths.back(), kInline)));
  }
  const int64_t rest = *std::max_element(lengths.begin(), lengths.end()) - kInline;
  if (rest <= 0) return messages;

  own = at::zeros({rest}, at::kByte);
  if (length > kInline) {
    std::memcpy(bytes_of(own), bytes.data() + kInline, as_size(length - kInline));
  }
  all = at::empty({size * rest}, at::kByte);
  all_gather(world, Channel::control, name, all, own);
  for (int64_t rank = 0; rank < size; ++rank) {
    const int64_t more = lengths[as_size(rank)] - kInline;
    if (more > 0) messages[as_size(rank)].append(bytes_of(all) + rank * rest, as_size(more));
  }
  return messages;
}

std::vector<std::string> gather_bytes(const World& world, const std::string& bytes) {
  if (world.size() == 1) return {bytes};
  require_same_in_debug(world, "gather_bytes");
  return exchange_messages(world, "gather_bytes", bytes);
}

std::vector<json> gather_object(const World& world, const json& value) {
  if (world.size() == 1) return std::vector<json>(1, value);
  require_same_in_debug(world, "gather_object");
  std::vector<json> values;
  for (const std::string& bytes : exchange_messages(world, "gather_object", to_bytes(value))) {
    values.push_back(json::from_cbor(bytes));
  }
  return values;
}

std::vector<json> gather_object_list(const World& world, const std::vector<json>& values) {
  if (world.size() == 1) return values;
  std::vector<json> joined;
  for (json& list : gather_object(world, json(values))) {
    for (json& value : list) joined.push_back(std::move(value));
  }
  return joined;
}

void broadcast_bytes(const World& world, std::string& bytes, int64_t from_process) {
  require_rank(world, "broadcast_object", from_process);
  if (world.size() == 1) return;
  require_same_in_debug(world, "broadcast_object");
  const bool sends = world.rank() == from_process;
  at::Tensor length = at::zeros({1}, at::kLong);
  if (sends) *length.mutable_data_ptr<int64_t>() = static_cast<int64_t>(bytes.size());
  broadcast_tensor(world, Channel::control, "broadcast_object", length, from_process);
  const int64_t count = *length.const_data_ptr<int64_t>();
  if (count == 0) {  // Gloo cannot send empty tensors
    bytes.clear();
    return;
  }
  at::Tensor content = at::empty({count}, at::kByte);
  if (sends) std::memcpy(bytes_of(content), bytes.data(), bytes.size());
  broadcast_tensor(world, Channel::control, "broadcast_object", content, from_process);
  if (!sends) bytes.assign(bytes_of(content), as_size(count));
}

void broadcast_object(const World& world, json& value, int64_t from_process) {
  require_rank(world, "broadcast_object", from_process);
  if (world.size() == 1) return;
  std::string bytes = world.rank() == from_process ? to_bytes(value) : std::string();
  broadcast_bytes(world, bytes, from_process);
  if (world.rank() != from_process) value = json::from_cbor(bytes);
}

void broadcast_object_list(const World& world, std::vector<json>& values, int64_t from_process) {
  json list = world.rank() == from_process ? json(values) : json();
  broadcast_object(world, list, from_process);
  if (world.size() > 1 && world.rank() != from_process) values = list.get<std::vector<json>>();
}

}  // namespace accelerant::dist
