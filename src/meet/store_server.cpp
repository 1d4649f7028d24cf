#include "meet/store_server.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "accelerant/core/log.h"
#include "core/files.h"
#include "meet/handshake.h"
#include "meet/place.h"
#include "meet/store_message.h"
#include "meet/store_requests.h"

namespace accelerant::meet {
namespace {

using ServerClock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::size_t kReadSize = std::size_t{64} << 10;
constexpr std::size_t kKeptCapacity = std::size_t{1} << 20;
constexpr int kMostAccepted = 64;  // in a row, before connections get their turn
constexpr milliseconds kPauseWithoutDescriptors(100);

// For threads that are started while it lives.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_ = {};
};

}  // namespace

class StoreServer::Loop {
 public:
  Loop(Fd socket, std::optional<Secret> secret, StoreServerLimits limits)
      : listener_(std::move(socket)), secret_(std::move(secret)), limits_(limits) {
    if (::listen(listener_.get(), SOMAXCONN) != 0) throw_system_error("Cannot listen", errno);
    if (::fcntl(listener_.get(), F_SETFL, O_NONBLOCK) != 0) {
      throw_system_error("Cannot serve a store", errno);
    }
    poll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    stop_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!poll_.is_open() || !stop_.is_open()) throw_system_error("Cannot serve a store", errno);
    control(EPOLL_CTL_ADD, listener_.get(), EPOLLIN);
    control(EPOLL_CTL_ADD, stop_.get(), EPOLLIN);
  }

  void stop() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof one);
  }

  void run() {
    while (true) {
      try {
        if (!take_turn()) return;
      } catch (const std::exception&) {  // no memory, for example: the next turn may succeed
      }
    }
  }

 private:
  enum class Stage { hello, proof, known };

  struct Connection {
    Fd socket = {};
    ServerClock::time_point since = {};  // when it was accepted
    Stage stage = Stage::hello;
    Nonce of_client = {};
    Nonce of_server = {};
    std::string in = {};  // received, but not handled yet
    std::string out = {};
    std::size_t sent = 0;  // of `out`
    uint32_t events = 0;   // that epoll reports
  };

  // False: it is to stop.
  bool take_turn() {
    std::array<epoll_event, 64> events;
    const int count =
        ::epoll_wait(poll_.get(), events.data(), static_cast<int>(events.size()), time_to_wait());
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      if (event.data.fd == stop_.get()) return false;
      if (event.data.fd == listener_.get()) {
        accept_some();
      } else {
        serve(event.data.fd, event.events);
      }
      deliver();
    }
    deliver();
    drop_slow_strangers();
    update_listening();
    return true;
  }

  void control(int operation, int fd, uint32_t events) {
    epoll_event event = {};
    event.events = events;
    event.data.fd = fd;
    if (::epoll_ctl(poll_.get(), operation, fd, &event) != 0) {
      throw_system_error("Cannot watch a connection", errno);
    }
  }

  // --- Time ---

  int time_to_wait() const {
    std::optional<ServerClock::time_point> next = requests_.next_deadline();
    const auto at = [&](ServerClock::time_point time) {
      next = std::min(next.value_or(time), time);
    };
    if (!strangers_.empty()) at(strangers_.begin()->first + limits_.introduction);
    if (!is_listening_) at(listens_again_);
    if (!next) return -1;
    const auto left = std::chrono::ceil<milliseconds>(*next - ServerClock::now());
    return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 3'600'000));
  }

  void drop_slow_strangers() {
    const auto now = ServerClock::now();
    while (!strangers_.empty() && strangers_.begin()->first + limits_.introduction <= now) {
      drop(strangers_.begin()->second);
    }
  }

  // --- Coming and going ---

  void accept_some() {
    for (int i = 0; i < kMostAccepted && make_place(); ++i) {
      Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.is_open()) {
        const bool is_short_of =
            errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        if (!is_short_of) return;  // nobody there, or gone again
        if (!strangers_.empty()) {
          drop(strangers_.begin()->second);
        } else {
          pause_until(ServerClock::now() + kPauseWithoutDescriptors);
        }
        return;
      }
      guarded(socket.get(), [&] { add(std::move(socket)); });
    }
  }

  void add(Fd socket) {
    const int fd = socket.get();
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    control(EPOLL_CTL_ADD, fd, EPOLLIN);
    const auto now = ServerClock::now();
    Connection& connection = connections_[fd];
    connection.socket = std::move(socket);
    connection.since = now;
    connection.events = EPOLLIN;
    strangers_.emplace(now, fd);
  }

  // Whether one more connection may come. Drops the oldest one that has not proven itself, if that
  // has had its time.
  bool make_place() {
    if (strangers_.size() < limits_.strangers) return true;
    const auto [since, fd] = *strangers_.begin();
    if (ServerClock::now() < since + limits_.patience) {
      pause_until(since + limits_.patience);
      return false;
    }
    drop(fd);
    return true;
  }

  void pause_until(ServerClock::time_point time) {
    if (is_listening_) control(EPOLL_CTL_MOD, listener_.get(), 0);
    is_listening_ = false;
    listens_again_ = time;
  }

  void update_listening() {
    if (is_listening_) return;
    const bool is_time = ServerClock::now() >= listens_again_;
    if (!is_time && (strangers_.empty() || strangers_.size() >= limits_.strangers)) return;
    control(EPOLL_CTL_MOD, listener_.get(), EPOLLIN);
    is_listening_ = true;
  }

  void drop(int fd) {
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;
    Connection& connection = found->second;
    if (connection.stage != Stage::known) strangers_.erase({connection.since, fd});
    requests_.forget(fd);
    connections_.erase(found);  // closes the socket, which takes it out of epoll too
  }

  // A process that knows no secret may try as often as it likes: the log says it ever more rarely.
  void refuse(const Connection& connection, std::string_view reason) {
    ++refused_;
    if (!std::has_single_bit(refused_)) return;
    try {
      log(LogLevel::warning, "the store of this run refused a connection from " +
                                 peer_text(connection.socket.get()) + ": " + std::string(reason) +
                                 " (" + std::to_string(refused_) + " so far)");
    } catch (...) {  // thrown by the program's own log handler: not a reason to stop
    }
  }

  // --- Bytes ---

  // What goes wrong with one connection ends only that one.
  template <class F>
  void guarded(int fd, F&& f) {
    try {
      f();
    } catch (const std::exception&) {
      drop(fd);
    }
  }

  void serve(int fd, uint32_t events) {
    const auto found = connections_.find(fd);
    if (found == connections_.end()) return;  // dropped since epoll reported it
    Connection& connection = found->second;
    guarded(fd, [&] {
      if ((events & EPOLLOUT) != 0) {
        go_on(connection);
      } else if (requests_.waits(fd) || (events & EPOLLIN) == 0) {
        drop(fd);  // EPOLLHUP, EPOLLERR or EPOLLRDHUP
      } else {
        receive(connection);
      }
    });
  }

  void receive(Connection& connection) {
    // A stranger cannot make the server keep more than what it may send.
    std::size_t most = buffer_.size();
    if (connection.stage == Stage::hello) most = kGreetingSize - connection.in.size();
    if (connection.stage == Stage::proof) most = kProofSize - connection.in.size();
    const ssize_t size = ::recv(connection.socket.get(), buffer_.data(), most, 0);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (size <= 0) return drop(connection.socket.get());
    connection.in.append(buffer_.data(), static_cast<std::size_t>(size));
    if (connection.stage == Stage::hello) return take_hello(connection);
    if (connection.stage == Stage::proof) return take_proof(connection);
    go_on(connection);
  }

  // Sends what it can, and then handles what has been received.
  void go_on(Connection& connection) {
    const int fd = connection.socket.get();
    std::size_t handled = 0;
    while (send_rest(connection) && connection.stage == Stage::known && !requests_.waits(fd)) {
      const std::string_view rest = std::string_view(connection.in).substr(handled);
      if (rest.size() < kLengthSize) break;
      const std::size_t size = length_of(rest);
      if (size > kLongestRequest) throw BadMessage();
      if (rest.size() - kLengthSize < size) break;
      handled += kLengthSize + size;
      if (auto answer = requests_.handle(fd, rest.substr(kLengthSize, size))) {
        connection.out = std::move(*answer);
      }
    }
    connection.in.erase(0, handled);
    if (connection.in.empty() && connection.in.capacity() > kKeptCapacity) {
      connection.in = std::string();
    }
    // While a request waits, only the end of the connection is of interest.
    const bool is_sending = !connection.out.empty();
    const uint32_t events = is_sending ? EPOLLOUT : requests_.waits(fd) ? EPOLLRDHUP : EPOLLIN;
    if (events != std::exchange(connection.events, events)) control(EPOLL_CTL_MOD, fd, events);
  }

  // Answers those who have waited.
  void deliver() {
    while (true) {
      auto answers = requests_.take_answers(ServerClock::now());
      if (answers.empty()) return;
      for (auto& [fd, message] : answers) {
        const auto found = connections_.find(fd);
        if (found == connections_.end()) continue;  // dropped by the answer before
        guarded(fd, [&, &text = message] {
          found->second.out = std::move(text);
          go_on(found->second);
        });
      }
    }
  }

  // Whether everything is sent. A reader that is slow or stopped gets the rest when it reads again.
  bool send_rest(Connection& connection) {
    std::string& out = connection.out;
    while (connection.sent < out.size()) {
      const ssize_t size = ::send(connection.socket.get(), out.data() + connection.sent,
                                  out.size() - connection.sent, MSG_NOSIGNAL);
      if (size < 0 && errno == EINTR) continue;
      if (size < 0 && errno == EAGAIN) return false;
      if (size < 0) throw_system_error("A connection to the store is lost", errno);
      connection.sent += static_cast<std::size_t>(size);
    }
    if (out.capacity() > kKeptCapacity) out = std::string();
    out.clear();
    connection.sent = 0;
    return true;
  }

  // --- Handshake ---

  void take_hello(Connection& connection) {
    const int fd = connection.socket.get();
    const auto hello = read_greeting(End::client, connection.in);
    if (!hello) {
      if (connection.in.size() < kGreetingSize && may_be_greeting(End::client, connection.in))
        return;
      refuse(connection, "it is not a process of Accelerant");
      return drop(fd);
    }
    connection.in.clear();
    connection.of_client = hello->nonce;
    connection.of_server = new_nonce();
    const Greeting challenge =
        make_greeting(End::server, secret_.has_value(), connection.of_server);
    connection.out.assign(challenge.data(), challenge.size());
    connection.stage = Stage::proof;
    go_on(connection);
    if (hello->has_secret == secret_.has_value()) return;
    refuse(connection, secret_ ? "it has no secret, and the run has one"
                               : "it expects the run to have a secret");
    drop(fd);
  }

  void take_proof(Connection& connection) {
    if (connection.in.size() < kProofSize) return;
    const int fd = connection.socket.get();
    const bool is_true =
        is_proof(connection.in, End::client, secret_, connection.of_client, connection.of_server);
    connection.in.clear();
    connection.out.assign(1, is_true ? '\1' : '\0');
    Digest proof = {};
    if (is_true) {
      proof = proof_of(End::server, secret_, connection.of_client, connection.of_server);
      strangers_.erase({connection.since, fd});
      connection.stage = Stage::known;
    }
    connection.out.append(reinterpret_cast<const char*>(proof.data()), proof.size());
    go_on(connection);
    if (is_true) return;
    refuse(connection, "it does not know the secret of this run");
    drop(fd);
  }

  const Fd listener_;
  const std::optional<Secret> secret_;
  const StoreServerLimits limits_;
  Fd poll_;
  Fd stop_;
  std::string buffer_ = std::string(kReadSize, '\0');

  StoreRequests requests_;
  std::unordered_map<int, Connection> connections_;
  // Those that have not proven themselves, the oldest first.
  std::set<std::pair<ServerClock::time_point, int>> strangers_;

  bool is_listening_ = true;
  ServerClock::time_point listens_again_ = {};
  uint64_t refused_ = 0;
};

StoreServer::StoreServer(Fd socket, std::optional<Secret> secret, StoreServerLimits limits)
    : loop_(std::make_unique<Loop>(std::move(socket), std::move(secret), limits)) {
  const SignalsBlocked signals;  // they are for the threads of the program
  thread_ = std::thread([this] { loop_->run(); });
}

StoreServer::~StoreServer() {
  loop_->stop();
  thread_.join();
}

}  // namespace accelerant::meet
