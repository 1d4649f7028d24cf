// How the two ends of a connection to the store prove to each other that they know the run's secret.
//
//   client → server   hello       48 bytes: magic, whether there is a secret, a random number
//   server → client   challenge   48 bytes: the same of the server
//   client → server   proof       32 bytes: HMAC(secret, "client" and both numbers)
//   server → client   verdict     33 bytes: a yes, and HMAC(secret, "server" and both numbers); or a no
//
// The client goes first, so a stranger learns nothing but a random number. The secret itself is
// never sent, and a recorded proof is of no use: the numbers are new each time. Only the start of a
// connection is proven; what follows is neither encrypted nor signed.
//
// Without a secret both ends go through the same steps with an empty one, and prove nothing. An end
// with a secret refuses one without.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

#include "core/hmac.h"
#include "meet/secret.h"

namespace accelerant::meet {

inline constexpr std::size_t kGreetingSize = 48;  // of hello and challenge
inline constexpr std::size_t kProofSize = 32;
inline constexpr std::size_t kVerdictSize = 1 + kProofSize;

using Nonce = std::array<std::byte, 32>;
using Greeting = std::array<char, kGreetingSize>;

enum class End { client, server };

Nonce new_nonce();

Greeting make_greeting(End from, bool has_secret, const Nonce& nonce);

// Whether a greeting may begin with these bytes.
bool may_be_greeting(End from, std::string_view bytes);

struct ReadGreeting {
  bool has_secret = false;
  Nonce nonce = {};
};
// Nothing if the other end speaks another language.
std::optional<ReadGreeting> read_greeting(End from, std::string_view bytes);

// What this end has to send so that the other one believes it.
Digest proof_of(End end, const std::optional<Secret>& secret, const Nonce& of_client,
                const Nonce& of_server);

bool is_proof(std::string_view bytes, End end, const std::optional<Secret>& secret,
              const Nonce& of_client, const Nonce& of_server);

}  // namespace accelerant::meet
