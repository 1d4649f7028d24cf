#include "meet/handshake.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "core/files.h"

namespace accelerant::meet {
namespace {

constexpr std::size_t kMagicSize = 8;
constexpr std::size_t kFlagAt = kMagicSize;
constexpr std::size_t kNonceAt = kGreetingSize - sizeof(Nonce);

// The last digit is the version of what follows.
constexpr std::string_view magic_of(End end) {
  return end == End::client ? "ACstorC1" : "ACstorS1";
}
constexpr std::string_view label_of(End end) {
  return end == End::client ? "accelerant store: client" : "accelerant store: server";
}

}  // namespace

Nonce new_nonce() {
  Nonce nonce;
  if (::getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    throw_system_error("There are no random numbers for a connection to the store", errno);
  }
  return nonce;
}

Greeting make_greeting(End from, bool has_secret, const Nonce& nonce) {
  Greeting greeting = {};
  std::ranges::copy(magic_of(from), greeting.begin());
  greeting[kFlagAt] = has_secret ? 1 : 0;
  std::memcpy(greeting.data() + kNonceAt, nonce.data(), nonce.size());
  return greeting;
}

bool may_be_greeting(End from, std::string_view bytes) {
  const std::string_view magic = magic_of(from);
  return bytes.starts_with(magic.substr(0, bytes.size()));
}

std::optional<ReadGreeting> read_greeting(End from, std::string_view bytes) {
  if (bytes.size() != kGreetingSize || !bytes.starts_with(magic_of(from))) return std::nullopt;
  if (bytes[kFlagAt] != 0 && bytes[kFlagAt] != 1) return std::nullopt;
  ReadGreeting greeting = {.has_secret = bytes[kFlagAt] == 1};
  std::memcpy(greeting.nonce.data(), bytes.data() + kNonceAt, greeting.nonce.size());
  return greeting;
}

Digest proof_of(End end, const std::optional<Secret>& secret, const Nonce& of_client,
                const Nonce& of_server) {
  const std::string_view label = label_of(end);
  const auto* const text = reinterpret_cast<const std::byte*>(label.data());
  std::vector<std::byte> message(text, text + label.size());
  message.insert(message.end(), of_client.begin(), of_client.end());
  message.insert(message.end(), of_server.begin(), of_server.end());
  return hmac_sha256(secret ? secret->bytes() : std::span<const std::byte>(), message);
}

bool is_proof(std::string_view bytes, End end, const std::optional<Secret>& secret,
              const Nonce& of_client, const Nonce& of_server) {
  const Digest expected = proof_of(end, secret, of_client, of_server);
  return equal_in_constant_time(std::as_bytes(std::span(bytes)), expected);
}

}  // namespace accelerant::meet
