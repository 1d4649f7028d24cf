// The server of a run's store against its own clients, and against everything else that may connect.
#include "meet/store_server.h"

#include <accelerant/core/log.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/fd.h"
#include "meet/handshake.h"
#include "meet/place.h"
#include "meet/store_client.h"
#include "support/expect_error.h"
#include "support/random_seed.h"

namespace {

using namespace accelerant::meet;  // NOLINT
using accelerant::Fd;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

// Collects what is logged during its lifetime.
class Logged {
 public:
  Logged() {
    before_ = accelerant::set_log_handler(
        [texts = texts_](accelerant::LogLevel, std::string_view text) { texts->add(text); });
  }
  ~Logged() { accelerant::set_log_handler(before_); }

  std::string all() { return texts_->all(); }

 private:
  class Texts {
   public:
    void add(std::string_view text) {
      const std::lock_guard lock(mutex_);
      all_ += std::string(text) + "\n";
    }
    std::string all() {
      const std::lock_guard lock(mutex_);
      return all_;
    }

   private:
    std::mutex mutex_;
    std::string all_;
  };

  // Shared with the handler, which the thread of a server may still be calling.
  std::shared_ptr<Texts> texts_ = std::make_shared<Texts>();
  accelerant::LogHandler before_;
};

// A server on a free port, and what connects to it.
class StoreServerTest : public testing::Test {
 protected:
  void start(std::optional<Secret> secret, StoreServerLimits limits = {}) {
    Bound bound = bind_at({});
    ASSERT_TRUE(bound.socket.is_open()) << bound.reason;
    place_ = {.port = port_of(bound.socket.get())};
    secret_ = std::move(secret);
    server_.emplace(std::move(bound.socket), secret_, limits);
  }

  std::unique_ptr<StoreClient> client() { return client_with(secret_); }
  std::unique_ptr<StoreClient> client_with(std::optional<Secret> secret) {
    return std::make_unique<StoreClient>(place_, std::move(secret), seconds(30));
  }

  // A connection that does not speak for itself.
  Fd stranger() const {
    const Endpoint endpoint = resolve(place_).endpoints.front();
    Fd made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(made.get(), endpoint.get(), endpoint.size), 0) << std::strerror(errno);
    return made;
  }

  static void send_text(const Fd& to, std::string_view text) {
    [[maybe_unused]] const ssize_t sent = ::send(to.get(), text.data(), text.size(), MSG_NOSIGNAL);
  }

  // What arrives until the other end closes; fails if it does not close in time.
  static std::string rest_of(const Fd& from, milliseconds timeout = seconds(30)) {
    const auto deadline = Clock::now() + timeout;
    std::string text;
    while (true) {
      pollfd entry = {.fd = from.get(), .events = POLLIN, .revents = 0};
      const auto left = std::chrono::ceil<milliseconds>(deadline - Clock::now());
      if (left.count() <= 0 || ::poll(&entry, 1, static_cast<int>(left.count())) == 0) {
        ADD_FAILURE() << "still connected";
        return text;
      }
      char buffer[4096];
      const ssize_t size = ::recv(from.get(), buffer, sizeof buffer, 0);
      if (size <= 0) return text;
      text.append(buffer, static_cast<size_t>(size));
    }
  }

  // Exactly so many bytes.
  static std::string receive(const Fd& from, size_t count) {
    std::string text(count, '\0');
    EXPECT_EQ(::recv(from.get(), text.data(), count, MSG_WAITALL), static_cast<ssize_t>(count));
    return text;
  }

  // A connection that has proven itself and can send any bytes.
  Fd known_stranger() {
    Fd made = stranger();
    const Nonce own = new_nonce();
    const Greeting hello = make_greeting(End::client, secret_.has_value(), own);
    send_text(made, {hello.data(), hello.size()});
    const auto challenge = read_greeting(End::server, receive(made, kGreetingSize));
    EXPECT_TRUE(challenge.has_value());
    const auto proof = proof_of(End::client, secret_, own, challenge->nonce);
    send_text(made, {reinterpret_cast<const char*>(proof.data()), proof.size()});
    EXPECT_EQ(receive(made, kVerdictSize)[0], '\1');
    return made;
  }

  Place place_;
  std::optional<Secret> secret_;
  std::optional<StoreServer> server_;
};

TEST_F(StoreServerTest, ServesThoseWhoKnowTheSecret) {
  start(Secret::random());
  const auto one = client();
  const auto two = client();
  one->set("a", "1");
  EXPECT_EQ(two->get({"a"}, seconds(30)), std::vector<std::string>{"1"});
  const auto three = two->connect_again(seconds(30));
  EXPECT_EQ(three->add("a", 2), 3);
  EXPECT_EQ(three->count_keys(), 1);
  const std::string large(5'000'000, 'x');
  one->set("large", large);
  EXPECT_EQ(two->get({"large", "a"}, seconds(30)), (std::vector<std::string>{large, "3"}));
}

TEST_F(StoreServerTest, AWrongSecretGetsNothing) {
  start(Secret::random());
  const auto owner = client();
  owner->set("key", "value");
  const auto refusal = [&](std::optional<Secret> secret) {
    try {
      client_with(std::move(secret));
    } catch (const StoreRefused& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  Logged logged;
  EXPECT_EQ(refusal(Secret::random()),
            "the secret of this process is not that of the main process");
  EXPECT_EQ(refusal(std::nullopt), "the run has a secret, which this process does not know");
  EXPECT_EQ(owner->count_keys(), 1);  // answered after the server has logged
  EXPECT_EQ(owner->get({"key"}, seconds(30)), std::vector<std::string>{"value"});
  EXPECT_TRUE(contains(logged.all(), "does not know the secret of this run (1 so far)"));
  EXPECT_TRUE(contains(logged.all(), "it has no secret, and the run has one (2 so far)"));
}

TEST_F(StoreServerTest, AProcessWithASecretRefusesAServerWithoutOne) {
  start(std::nullopt);
  EXPECT_NO_THROW(client()->set("a", "1"));
  Logged logged;
  EXPECT_THROW(client_with(Secret::random()), StoreRefused);
}

// It speaks the language, but does not know the secret: it took the port before rank 0 did.
TEST_F(StoreServerTest, ARogueServerIsRecognised) {
  const Bound bound = bind_at({});
  ASSERT_EQ(::listen(bound.socket.get(), 8), 0);
  place_ = {.port = port_of(bound.socket.get())};
  std::thread rogue([&] {
    const Fd peer(::accept(bound.socket.get(), nullptr, nullptr));
    receive(peer, kGreetingSize);
    const Greeting challenge = make_greeting(End::server, true, new_nonce());
    send_text(peer, {challenge.data(), challenge.size()});
    const std::string proof = receive(peer, kProofSize);
    send_text(peer, "\1" + proof);  // the only proof that it has seen
    rest_of(peer);
  });
  try {
    client_with(Secret::random());
    ADD_FAILURE() << "was fooled";
  } catch (const StoreRefused& error) {
    EXPECT_TRUE(contains(error.what(), "does not know the secret of this run"));
  }
  rogue.join();
}

// A stranger cannot answer a challenge with what it has seen on another connection.
TEST_F(StoreServerTest, ARecordedConnectionIsOfNoUse) {
  start(Secret::random());
  const Nonce own = new_nonce();
  const Greeting hello = make_greeting(End::client, true, own);
  std::string proof;
  {
    const Fd honest = stranger();
    send_text(honest, {hello.data(), hello.size()});
    const auto challenge = read_greeting(End::server, receive(honest, kGreetingSize));
    const auto digest = proof_of(End::client, secret_, own, challenge->nonce);
    proof.assign(reinterpret_cast<const char*>(digest.data()), digest.size());
  }
  Logged logged;
  const Fd replayed = stranger();
  send_text(replayed, {hello.data(), hello.size()});
  receive(replayed, kGreetingSize);
  send_text(replayed, proof);
  const std::string verdict = rest_of(replayed);
  EXPECT_EQ(verdict, std::string(kVerdictSize, '\0'));
}

TEST_F(StoreServerTest, StrangersThatSayNothingAreDropped) {
  start(Secret::random(), {.introduction = milliseconds(200)});
  const Fd silent = stranger();
  const Fd half = stranger();
  send_text(half, "ACst");
  Fd drip = stranger();
  const auto begin = Clock::now();
  std::thread dripping([&] {  // always about to say something
    for (int i = 0; i < 20; ++i) {
      send_text(drip, "A");
      std::this_thread::sleep_for(milliseconds(50));
    }
  });
  EXPECT_EQ(rest_of(silent), "");
  EXPECT_EQ(rest_of(half), "");
  EXPECT_EQ(rest_of(drip), "");
  EXPECT_LT(Clock::now() - begin, seconds(20));
  dripping.join();
}

TEST_F(StoreServerTest, OtherLanguagesEndTheConnection) {
  start(Secret::random());
  Logged logged;
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\nHost: localhost\r\nAccept: everything\r\n\r\n"),
        std::string(100, '\0'), std::string(100, '\xff'), "ACstorC1" + std::string(40, '\x7f')}) {
    const Fd connection = stranger();
    send_text(connection, text);
    EXPECT_EQ(rest_of(connection), "") << text;
  }
  EXPECT_TRUE(contains(logged.all(), "it is not a process of Accelerant (1 so far)"));
  EXPECT_TRUE(contains(logged.all(), "(4 so far)"));
  EXPECT_FALSE(contains(logged.all(), "(3 so far)"));  // ever more rarely
  EXPECT_NO_THROW(client()->set("a", "1"));
}

// Before they are known, after, and with lengths that promise too much.
TEST_F(StoreServerTest, RandomBytesHurtOnlyTheirOwnConnection) {
  start(Secret::random());
  const auto owner = client();
  owner->set("key", "value");
  Logged logged;
  std::mt19937 random(random_seed());
  const auto random_text = [&](size_t longest) {
    std::string text(std::uniform_int_distribution<size_t>(1, longest)(random), '\0');
    for (char& letter : text) letter = static_cast<char>(random());
    return text;
  };
  for (int i = 0; i < 200; ++i) {
    const Fd before = stranger();
    send_text(before, random_text(200));
    const Fd after = known_stranger();
    std::string message = random_text(60);
    if (i % 2 == 0) {  // a true length, so that the content is looked at, and a true operation
      message[0] = static_cast<char>(1 + i / 2 % 10);
      const auto size = static_cast<uint32_t>(message.size());
      message.insert(0, reinterpret_cast<const char*>(&size), sizeof size);
    }
    send_text(after, message);
    ::shutdown(after.get(), SHUT_WR);
    rest_of(after);
  }
  EXPECT_EQ(owner->get({"key"}, seconds(30)), std::vector<std::string>{"value"});
}

long resident_pages() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  long size = 0;
  long resident = 0;
  EXPECT_EQ(std::fscanf(file, "%ld %ld", &size, &resident), 2);
  std::fclose(file);
  return resident;
}

TEST_F(StoreServerTest, ALengthReservesNoMemory) {
  start(Secret::random());
  const long before = resident_pages();
  std::vector<Fd> connections;
  for (int i = 0; i < 50; ++i) {
    connections.push_back(known_stranger());
    const uint32_t size = kLongestRequest;
    send_text(connections.back(), {reinterpret_cast<const char*>(&size), sizeof size});
    send_text(connections.back(), "\1ten bytes");
  }
  client()->set("a", "1");
  EXPECT_LT(resident_pages() - before, 5000) << "20 MB";
  const Fd too_long = known_stranger();
  const uint32_t size = kLongestRequest + 1;
  send_text(too_long, {reinterpret_cast<const char*>(&size), sizeof size});
  EXPECT_EQ(rest_of(too_long), "");
}

TEST_F(StoreServerTest, ManyStrangersKeepNobodyOut) {
  start(Secret::random(), {.strangers = 8, .patience = milliseconds(20)});
  std::vector<Fd> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(stranger());
  const auto begin = Clock::now();
  client()->set("a", "1");
  EXPECT_LT(Clock::now() - begin, seconds(20));
}

TEST_F(StoreServerTest, ManyProcessesJoinAtOnce) {
  start(Secret::random(), {.strangers = 8});
  std::vector<std::thread> threads;
  for (int i = 0; i < 64; ++i) {
    threads.emplace_back([&, i] {
      const auto own = client();
      own->set(std::to_string(i), "here");
      own->get({std::to_string((i + 1) % 64), std::to_string((i + 63) % 64)}, seconds(60));
      own->add("count", 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(client()->add("count", 0), 64);
}

TEST_F(StoreServerTest, WaitsForKeys) {
  start(std::nullopt);
  const auto one = client();
  const auto two = client();
  std::atomic<bool> has_come = false;
  std::thread waiting([&] {
    two->wait({"a", "b", "c"}, seconds(60));
    has_come = true;
  });
  one->set("c", "");
  one->add("a", 1);
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(has_come);
  one->remove("a");
  one->multi_set({"b"}, {"2"});
  std::this_thread::sleep_for(milliseconds(50));
  one->compare_set("a", "", "1");
  waiting.join();
  EXPECT_TRUE(has_come);
}

TEST_F(StoreServerTest, WaitingEndsInTime) {
  start(std::nullopt);
  const auto one = client();
  one->set("a", "1");
  const auto begin = Clock::now();
  try {
    one->get({"a", "b"}, milliseconds(100));
    ADD_FAILURE() << "found a missing key";
  } catch (const StoreTimeout& error) {
    EXPECT_STREQ(error.what(), "wait timeout after 100ms, keys: a, b");
  }
  const auto waited = Clock::now() - begin;
  EXPECT_GE(waited, milliseconds(99));
  EXPECT_LT(waited, seconds(10));
  EXPECT_EQ(one->get({"a"}, milliseconds(100)).front(), "1") << "still connected";
  // The request that is over is not answered later.
  one->set("b", "2");
  EXPECT_TRUE(one->check({"b"}));
}

TEST_F(StoreServerTest, ProcessesThatEndWhileTheyWaitAreForgotten) {
  start(std::nullopt);
  for (int i = 0; i < 20; ++i) {
    const Fd gone = known_stranger();
    MessageWriter request(Operation::wait);
    request.number(-1);
    request.texts({"never", "a"});
    send_text(gone, request.finish());
  }
  const auto own = client();
  own->set("never", "");
  own->set("a", "");
  EXPECT_TRUE(own->check({"a"}));
}

// It has asked for much and reads nothing, as if it were stopped.
TEST_F(StoreServerTest, AStoppedReaderDelaysNobody) {
  start(std::nullopt);
  const auto own = client();
  own->set("large", std::string(30'000'000, 'x'));
  const Fd stopped = known_stranger();
  MessageWriter request(Operation::get);
  request.number(1000);
  request.texts({"large"});
  const std::string bytes = request.finish();
  for (int i = 0; i < 100; ++i) send_text(stopped, bytes);
  const long before = resident_pages();
  for (int i = 0; i < 100; ++i) EXPECT_EQ(own->add("n", 1), i + 1);
  EXPECT_LT(resident_pages() - before, 50'000) << "200 MB: one answer at a time";
}

TEST_F(StoreServerTest, AnAnswerThatWouldBeTooLongIsAnError) {
  start(std::nullopt);
  const auto own = client();
  const std::string large(60'000'000, 'x');
  std::vector<std::string> keys;
  for (int i = 0; i < 5; ++i) {
    keys.push_back(std::to_string(i));
    own->set(keys.back(), large);
  }
  EXPECT_THROW(own->get(keys, seconds(30)), StoreFailed);
  EXPECT_THROW(own->set("larger", std::string(kLongestRequest, 'x')), StoreFailed);
  own->set("text", "five");
  EXPECT_THROW(own->add("text", 1), StoreFailed);
  EXPECT_EQ(own->count_keys(), 6) << "still connected";
}

TEST_F(StoreServerTest, TheEndOfTheServerIsNoticedAtOnce) {
  start(Secret::random());
  const auto one = client();
  std::thread ending([&] {
    std::this_thread::sleep_for(milliseconds(100));
    server_.reset();
  });
  EXPECT_THROW(one->wait({"never"}, seconds(60)), StoreLost);
  ending.join();
  try {
    one->set("a", "1");
    ADD_FAILURE() << "the connection came back";
  } catch (const StoreLost& error) {
    EXPECT_TRUE(contains(error.what(), place_.text()));
  }
  try {
    one->connect_again(milliseconds(200));
    ADD_FAILURE() << "somebody serves";
  } catch (const StoreUnreachable& error) {
    EXPECT_TRUE(contains(error.what(), "Connection refused"));
  }
}

TEST_F(StoreServerTest, ClientsWaitForAServerThatComesLater) {
  Bound bound = bind_at({});
  place_ = {.port = port_of(bound.socket.get())};
  std::thread joining([&] { client()->set("a", "1"); });
  std::this_thread::sleep_for(milliseconds(200));
  server_.emplace(std::move(bound.socket), std::nullopt);
  joining.join();
  EXPECT_TRUE(client()->check({"a"}));
}

// Without descriptors nobody can be let in; those who are in notice nothing.
TEST_F(StoreServerTest, WithoutFreeDescriptorsTheOthersGoOn) {
  start(Secret::random());
  const auto own = client();
  const Fd waits = stranger();
  rlimit before = {};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  std::vector<Fd> taken;
  for (int i = 0; i < 50; ++i) {
    taken.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  const rlimit low = {.rlim_cur = static_cast<rlim_t>(waits.get()), .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  // Connecting takes no descriptor; accepting does.
  const Endpoint there = resolve(place_).endpoints.front();
  for (const Fd& one : taken) EXPECT_EQ(::connect(one.get(), there.get(), there.size), 0);
  for (int i = 0; i < 50; ++i) own->add("n", 1);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(client()->add("n", 0), 50);
}

}  // namespace
