#include "meet/store_client.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>
#include <utility>

#include "meet/handshake.h"

namespace accelerant::meet {
namespace {

using std::chrono::milliseconds;
using ClientClock = std::chrono::steady_clock;

// An address behind a firewall may never answer; the next one may.
constexpr milliseconds kPatienceWithAddress = std::chrono::seconds(5);
constexpr milliseconds kFirstPause(10);
constexpr milliseconds kLongestPause(500);

// While connecting: what ends this attempt, but not the next one.
struct AttemptFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void await(int socket, short events, ClientClock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - ClientClock::now());
    if (left.count() <= 0) throw AttemptFailed("it does not answer");
    pollfd entry = {.fd = socket, .events = events, .revents = 0};
    constexpr milliseconds::rep kLongestPoll = 3'600'000;
    if (::poll(&entry, 1, static_cast<int>(std::min(left.count(), kLongestPoll))) > 0) return;
  }
}

void send_in_time(int socket, std::string_view bytes, ClientClock::time_point deadline) {
  while (!bytes.empty()) {
    const ssize_t size = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(size));
    } else if (errno == EAGAIN) {
      await(socket, POLLOUT, deadline);
    } else if (errno != EINTR) {
      throw AttemptFailed(::strerror(errno));
    }
  }
}

std::string receive_in_time(int socket, std::size_t count, ClientClock::time_point deadline) {
  std::string bytes(count, '\0');
  std::size_t received = 0;
  while (received < count) {
    const ssize_t size = ::recv(socket, bytes.data() + received, count - received, 0);
    if (size > 0) {
      received += static_cast<std::size_t>(size);
    } else if (size == 0) {
      throw AttemptFailed("the connection was closed before the store had answered");
    } else if (errno == EAGAIN) {
      await(socket, POLLIN, deadline);
    } else if (errno != EINTR) {
      throw AttemptFailed(::strerror(errno));
    }
  }
  return bytes;
}

// A connection to a free port of this machine may end up connected to itself.
bool is_connected_to_itself(int socket) {
  sockaddr_storage one = {};
  sockaddr_storage other = {};
  socklen_t size = sizeof one;
  socklen_t other_size = sizeof other;
  return ::getsockname(socket, reinterpret_cast<sockaddr*>(&one), &size) == 0 &&
         ::getpeername(socket, reinterpret_cast<sockaddr*>(&other), &other_size) == 0 &&
         size == other_size && ::memcmp(&one, &other, size) == 0;
}

// A machine that loses its power or its network closes no connections. One that is only stopped
// still answers: the system does so.
void notice_lost_machines(int socket) {
  const int yes = 1;
  const int idle = 15;     // seconds
  const int interval = 5;  // seconds
  const int count = 4;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  ::setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
}

Fd open_connection(const Endpoint& endpoint, ClientClock::time_point deadline) {
  Fd made(::socket(endpoint.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made.is_open()) throw AttemptFailed(::strerror(errno));
  const int yes = 1;
  ::setsockopt(made.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  notice_lost_machines(made.get());
  if (::connect(made.get(), endpoint.get(), endpoint.size) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) throw AttemptFailed(::strerror(errno));
    await(made.get(), POLLOUT, std::min(deadline, ClientClock::now() + kPatienceWithAddress));
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(made.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) throw AttemptFailed(::strerror(error));
  }
  if (is_connected_to_itself(made.get())) throw AttemptFailed("nobody listens there");
  return made;
}

// Proves to the store that this process knows the secret, and demands the same of it.
void introduce(int socket, const std::optional<Secret>& secret, ClientClock::time_point deadline) {
  const Nonce own = new_nonce();
  const Greeting hello = make_greeting(End::client, secret.has_value(), own);
  send_in_time(socket, {hello.data(), hello.size()}, deadline);
  const auto challenge =
      read_greeting(End::server, receive_in_time(socket, kGreetingSize, deadline));
  if (!challenge) throw StoreRefused("what listens there is not the store of an Accelerant run");
  if (challenge->has_secret != secret.has_value()) {
    throw StoreRefused(secret ? "this process has a secret, but the main process has none"
                              : "the run has a secret, which this process does not know");
  }
  const Digest proof = proof_of(End::client, secret, own, challenge->nonce);
  send_in_time(socket, {reinterpret_cast<const char*>(proof.data()), proof.size()}, deadline);
  const std::string verdict = receive_in_time(socket, kVerdictSize, deadline);
  if (verdict[0] != '\1') {
    throw StoreRefused("the secret of this process is not that of the main process");
  }
  if (!is_proof(std::string_view(verdict).substr(1), End::server, secret, own, challenge->nonce)) {
    throw StoreRefused("what listens there does not know the secret of this run");
  }
}

}  // namespace

StoreClient::StoreClient(Place place, std::optional<Secret> secret, Timeout timeout)
    : place_(std::move(place)), secret_(std::move(secret)) {
  const auto deadline = Clock::now() + timeout;
  for (milliseconds pause = kFirstPause;; pause = std::min(pause * 3 / 2, kLongestPause)) {
    const std::string problem = try_to_connect(deadline);
    if (problem.empty()) return;
    if (Clock::now() + pause >= deadline) throw StoreUnreachable(problem);
    std::this_thread::sleep_for(pause);
  }
}

std::string StoreClient::try_to_connect(Clock::time_point deadline) {
  const Resolved resolved = resolve(place_);  // each time: a name may become known later
  std::string problem = resolved.reason;
  for (const Endpoint& endpoint : resolved.endpoints) {
    const std::string failure = connect_to(endpoint, deadline);
    if (failure.empty()) return "";
    if (problem.empty()) problem = failure;
  }
  return problem;
}

std::string StoreClient::connect_to(const Endpoint& endpoint, Clock::time_point deadline) {
  try {
    Fd socket = open_connection(endpoint, deadline);
    introduce(socket.get(), secret_, deadline);
    ::fcntl(socket.get(), F_SETFL, 0);  // blocking from here on
    socket_ = std::move(socket);
    return "";
  } catch (const AttemptFailed& failure) {
    return failure.what();
  }
}

void StoreClient::lose(const std::string& why) {
  lost_ = why + " (the store at " + place_.text() + ")";
  socket_.reset();
  throw StoreLost(lost_);
}

// A request and its answer, both without their lengths in the result.
std::string StoreClient::exchange(const std::string& request) {
  if (!socket_.is_open()) throw StoreLost(lost_);
  for (std::string_view rest = request; !rest.empty();) {
    const ssize_t size = ::send(socket_.get(), rest.data(), rest.size(), MSG_NOSIGNAL);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) lose(::strerror(errno));
    rest.remove_prefix(static_cast<std::size_t>(size));
  }
  std::array<char, std::size_t{16} << 10> buffer;
  std::string answer;
  while (answer.size() < kLengthSize || answer.size() < kLengthSize + length_of(answer)) {
    const ssize_t size = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) lose(::strerror(errno));
    if (size == 0) lose("Connection closed by peer");
    answer.append(buffer.data(), static_cast<std::size_t>(size));
    const bool is_too_long = answer.size() >= kLengthSize && length_of(answer) > kLongestAnswer;
    if (is_too_long) lose("an answer that cannot be read");
  }
  if (answer.size() != kLengthSize + length_of(answer)) lose("an answer that cannot be read");
  return answer.substr(kLengthSize);
}

std::string StoreClient::ask(MessageWriter request, const std::vector<std::string>& keys,
                             Timeout timeout) {
  const std::string bytes = request.finish();
  if (bytes.size() - kLengthSize > kLongestRequest) {
    throw StoreFailed("a request to the store may have " + std::to_string(kLongestRequest) +
                      " bytes, not " + std::to_string(bytes.size()));
  }
  const std::lock_guard lock(mutex_);
  const std::string answer = exchange(bytes);
  try {
    MessageReader reader(answer);
    switch (static_cast<Outcome>(reader.kind())) {
      case Outcome::done:
        return answer.substr(1);
      case Outcome::timeout: {
        std::string names;
        for (const std::string& key : keys) names += (names.empty() ? "" : ", ") + key;
        // In the words of c10d, which others look for.
        throw StoreTimeout("wait timeout after " + std::to_string(timeout.count()) +
                           "ms, keys: " + names);
      }
      case Outcome::failed:
        throw StoreFailed(std::string(reader.text()));
    }
    throw BadMessage();
  } catch (const BadMessage&) {
    lose("an answer that cannot be read");
  }
}

int64_t StoreClient::ask_number(MessageWriter request) {
  const std::string answer = ask(std::move(request));
  return MessageReader(answer).number();
}

void StoreClient::set(const std::string& key, std::string_view value) {
  MessageWriter request(Operation::set);
  request.text(key);
  request.text(value);
  ask(std::move(request));
}

void StoreClient::append(const std::string& key, std::string_view value) {
  MessageWriter request(Operation::append);
  request.text(key);
  request.text(value);
  ask(std::move(request));
}

void StoreClient::multi_set(const std::vector<std::string>& keys,
                            const std::vector<std::string>& values) {
  if (keys.size() != values.size()) throw StoreFailed("as many values as keys must be set");
  MessageWriter request(Operation::multi_set);
  request.texts(keys);
  request.texts(values);
  ask(std::move(request));
}

std::vector<std::string> StoreClient::get(const std::vector<std::string>& keys, Timeout timeout) {
  MessageWriter request(Operation::get);
  request.number(timeout.count());
  request.texts(keys);
  const std::string answer = ask(std::move(request), keys, timeout);
  return MessageReader(answer).texts();
}

void StoreClient::wait(const std::vector<std::string>& keys, Timeout timeout) {
  MessageWriter request(Operation::wait);
  request.number(timeout.count());
  request.texts(keys);
  ask(std::move(request), keys, timeout);
}

bool StoreClient::check(const std::vector<std::string>& keys) {
  MessageWriter request(Operation::check);
  request.texts(keys);
  return ask_number(std::move(request)) != 0;
}

int64_t StoreClient::add(const std::string& key, int64_t number) {
  MessageWriter request(Operation::add);
  request.text(key);
  request.number(number);
  return ask_number(std::move(request));
}

std::string StoreClient::compare_set(const std::string& key, std::string_view expected,
                                     std::string_view desired) {
  MessageWriter request(Operation::compare_set);
  request.text(key);
  request.text(expected);
  request.text(desired);
  const std::string answer = ask(std::move(request));
  return std::string(MessageReader(answer).text());
}

bool StoreClient::remove(const std::string& key) {
  MessageWriter request(Operation::remove);
  request.text(key);
  return ask_number(std::move(request)) != 0;
}

int64_t StoreClient::count_keys() { return ask_number(MessageWriter(Operation::count_keys)); }

}  // namespace accelerant::meet
