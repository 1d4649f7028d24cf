// The store of a run against c10d's TCPStore, which it stands in for.
#include "dist/run_store.h"

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "meet/place.h"
#include "meet/store_server.h"
#include "support/expect_error.h"
#include "support/random_seed.h"
#include "watch/failure.h"

namespace {

using accelerant::dist::c10d_message;
using accelerant::dist::RunStore;
using accelerant::meet::Secret;
using accelerant::meet::StoreClient;
using accelerant::meet::StoreServer;
using std::chrono::milliseconds;
using std::chrono::seconds;
using Store = c10::intrusive_ptr<c10d::Store>;
using Bytes = std::vector<uint8_t>;

struct Served {
  std::unique_ptr<StoreServer> server = {};
  Store store = {};
};

Served serve_run_store(milliseconds timeout) {
  auto bound = accelerant::meet::bind_at({});
  const accelerant::meet::Place place = {.port = accelerant::meet::port_of(bound.socket.get())};
  const Secret secret = Secret::random();
  Served served = {.server = std::make_unique<StoreServer>(std::move(bound.socket), secret)};
  served.store = c10::make_intrusive<RunStore>(
      std::make_unique<StoreClient>(place, secret, seconds(30)), timeout);
  return served;
}

Store serve_tcp_store(milliseconds timeout) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  Store store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
  store->setTimeout(timeout);
  return store;
}

std::string shown(const Bytes& bytes) {
  return "'" + std::string(bytes.begin(), bytes.end()) + "'";
}

// What an operation returns or throws, as text.
template <class F>
std::string result_of(F&& f) {
  try {
    return f();
  } catch (const c10::DistNetworkError& error) {
    return "DistNetworkError";
  } catch (const c10::DistStoreError& error) {
    const std::string text = c10d_message(error.what());
    return "DistStoreError " + text.substr(0, text.find(", keys"));
  }
}

// A random operation on one of few keys, so that they meet.
class RandomOperation {
 public:
  explicit RandomOperation(std::mt19937& random) : random_(random) {
    kind_ = below(14);
    for (int i = below(4); i >= 0; --i) keys_.push_back("key" + std::to_string(below(6)));
    for (size_t i = 0; i < keys_.size(); ++i) values_.push_back(value());
    number_ = below(2000) - 1000;
  }

  std::string on(c10d::Store& store) const {
    const std::string& key = keys_.front();
    const Bytes& value = values_.front();
    switch (kind_) {
      case 0:
      case 1:
        store.set(key, value);
        return "set";
      case 2:
        return "get " + shown(store.get(key));
      case 3:
        return "wait " + (store.wait(keys_), std::string());
      case 4:
        store.wait(keys_, milliseconds(3));
        return "wait briefly";
      case 5:
        return "check " + std::to_string(store.check(keys_));
      case 6:  // of a number: TCPStore's server does not survive others
        return "add " + std::to_string(store.add("number " + key, number_));
      case 7:
        return "compareSet " + shown(store.compareSet(key, values_.back(), value));
      case 8:
        return "deleteKey " + std::to_string(store.deleteKey(key));
      case 9:
        return "deleteKey " + std::to_string(store.deleteKey("number " + key));
      case 10:
        store.append(key, value);
        return "append";
      case 11: {
        std::string text = "multiGet";
        for (const Bytes& one : store.multiGet(keys_)) text += " " + shown(one);
        return text;
      }
      case 12:
        store.multiSet(keys_, values_);
        return "multiSet";
      default:
        return "getNumKeys " + std::to_string(store.getNumKeys());
    }
  }

 private:
  int below(int end) { return std::uniform_int_distribution<int>(0, end - 1)(random_); }
  Bytes value() {
    static constexpr size_t kSizes[] = {0, 1, 1, 2, 100, 70'000};
    Bytes bytes(kSizes[below(6)]);
    const bool is_one = below(2) == 0;  // so that some are equal
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(is_one ? 'x' : random_());
    return bytes;
  }

  std::mt19937& random_;
  int kind_ = 0;
  std::vector<std::string> keys_;
  std::vector<Bytes> values_;
  int64_t number_ = 0;
};

bool is_timeout(const std::string& result) {
  return result.find("wait timeout") != std::string::npos;
}

TEST(RunStoreTest, DoesWhatTcpStoreDoes) {
  std::mt19937 random(random_seed());
  const Served ours = serve_run_store(milliseconds(2));
  const Store theirs = serve_tcp_store(milliseconds(2));
  // Stores count some keys of their own.
  const int64_t more = theirs->getNumKeys() - ours.store->getNumKeys();
  const auto own_prefix = c10::make_intrusive<c10d::PrefixStore>("prefix", ours.store);
  const auto their_prefix = c10::make_intrusive<c10d::PrefixStore>("prefix", theirs);
  for (int i = 0; i < 3000; ++i) {
    const RandomOperation operation(random);
    const bool is_prefixed = i % 3 == 0;
    c10d::Store& own = is_prefixed ? *own_prefix : *ours.store;
    c10d::Store& their = is_prefixed ? *their_prefix : *theirs;
    std::string got = result_of([&] { return operation.on(own); });
    std::string expected = result_of([&] { return operation.on(their); });
    // On a busy machine an answer may take longer than the timeout. Waiting changes nothing, so it
    // can be done again.
    for (int attempts = 0; attempts < 100 && got != expected; ++attempts) {
      std::string* late = is_timeout(got) ? &got : is_timeout(expected) ? &expected : nullptr;
      if (late == nullptr) break;
      *late = result_of([&] { return operation.on(late == &got ? own : their); });
    }
    ASSERT_EQ(got, expected) << "operation " << i;
  }
  EXPECT_EQ(ours.store->getNumKeys() + more, theirs->getNumKeys());
}

TEST(RunStoreTest, WaitsAsTcpStoreDoes) {
  const Served ours = serve_run_store(seconds(60));
  for (const Store& store : {ours.store, serve_tcp_store(seconds(60))}) {
    const Store other = store->clone();
    const auto after_a_while = [&](auto f) {
      return std::thread([&other, f] {
        std::this_thread::sleep_for(milliseconds(30));
        f(*other);
      });
    };
    std::thread one = after_a_while([](c10d::Store& s) { s.set("a", "1"); });
    EXPECT_EQ(store->get_to_str("a"), "1");
    one.join();
    std::thread two = after_a_while([](c10d::Store& s) { s.add("b", 5); });
    store->wait({"a", "b"});
    two.join();
    std::thread three = after_a_while([](c10d::Store& s) { s.append("c", {'1'}); });
    EXPECT_EQ(store->multiGet({"a", "b", "c"}).back(), Bytes{'1'});
    three.join();
    std::thread four = after_a_while([](c10d::Store& s) {
      s.multiSet({"d", "e"}, {{'1'}, {'2'}});
    });
    store->wait({"e", "d"}, seconds(60));
    four.join();
  }
}

TEST(RunStoreTest, ATimeoutIsTheErrorOfTcpStore) {
  const Served ours = serve_run_store(milliseconds(20));
  for (const Store& store : {ours.store, serve_tcp_store(milliseconds(20))}) {
    try {
      store->wait({"a", "b"}, milliseconds(50));
      ADD_FAILURE() << "found a missing key";
    } catch (const c10::DistStoreError& error) {
      EXPECT_TRUE(contains(c10d_message(error.what()), "wait timeout after 50ms, keys: "));
    }
    EXPECT_THROW(store->get("a"), c10::DistStoreError);
    store->setTimeout(milliseconds(40));
    EXPECT_EQ(store->getTimeout(), milliseconds(40));
    EXPECT_THROW(store->multiGet({"a"}), c10::DistStoreError);
  }
}

TEST(RunStoreTest, TheEndOfTheServerIsANetworkError) {
  Served ours = serve_run_store(seconds(60));
  const Store other = ours.store->clone();
  ours.server.reset();
  for (const Store& store : {ours.store, other}) {
    EXPECT_THROW(store->set("a", "1"), c10::DistNetworkError);
    EXPECT_THROW(store->check({"a"}), c10::DistNetworkError);
  }
  EXPECT_THROW(
      {
        ours.store->setTimeout(milliseconds(50));
        ours.store->clone();
      },
      c10::DistNetworkError);
}

TEST(RunStoreTest, ThreadsShareAConnection) {
  const Served ours = serve_run_store(seconds(60));
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      for (int j = 0; j < 100; ++j) {
        const std::string key = std::to_string(i) + "/" + std::to_string(j);
        ours.store->set(key, key);
        EXPECT_EQ(ours.store->get_to_str(key), key);
        ours.store->add("count", 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ours.store->add("count", 0), 800);
}

}  // namespace
