#include "dist/run_store.h"

#include <c10/util/Exception.h>

#include <string_view>
#include <utility>

namespace accelerant::dist {
namespace {

std::string_view chars_of(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

// What f(client) returns, with errors as c10d reports them.
template <class F>
auto ask_store(meet::StoreClient& client, F&& f) {
  try {
    return f(client);
  } catch (const meet::StoreLost& error) {
    C10_THROW_ERROR(DistNetworkError, error.what());
  } catch (const meet::StoreUnreachable& error) {
    C10_THROW_ERROR(DistNetworkError, error.what());
  } catch (const meet::StoreRefused& error) {
    C10_THROW_ERROR(DistNetworkError, error.what());
  } catch (const meet::StoreTimeout& error) {
    C10_THROW_ERROR(DistStoreError, error.what());
  } catch (const meet::StoreFailed& error) {
    C10_THROW_ERROR(DistStoreError, error.what());
  }
}

}  // namespace

RunStore::RunStore(std::unique_ptr<meet::StoreClient> client, std::chrono::milliseconds timeout)
    : Store(timeout), client_(std::move(client)) {}

c10::intrusive_ptr<c10d::Store> RunStore::clone() {
  auto client = ask_store(*client_, [&](const auto& own) { return own.connect_again(timeout_); });
  return c10::make_intrusive<RunStore>(std::move(client), timeout_);
}

void RunStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask_store(*client_, [&](auto& client) { client.set(key, chars_of(value)); });
}

std::vector<uint8_t> RunStore::compareSet(const std::string& key,
                                          const std::vector<uint8_t>& expected,
                                          const std::vector<uint8_t>& desired) {
  return bytes_of(ask_store(*client_, [&](auto& client) {
    return client.compare_set(key, chars_of(expected), chars_of(desired));
  }));
}

std::vector<uint8_t> RunStore::get(const std::string& key) { return multiGet({key}).front(); }

int64_t RunStore::add(const std::string& key, int64_t value) {
  return ask_store(*client_, [&](auto& client) { return client.add(key, value); });
}

bool RunStore::deleteKey(const std::string& key) {
  return ask_store(*client_, [&](auto& client) { return client.remove(key); });
}

bool RunStore::check(const std::vector<std::string>& keys) {
  return ask_store(*client_, [&](auto& client) { return client.check(keys); });
}

int64_t RunStore::getNumKeys() {
  return ask_store(*client_, [&](auto& client) { return client.count_keys(); });
}

void RunStore::wait(const std::vector<std::string>& keys) { wait(keys, timeout_); }

void RunStore::wait(const std::vector<std::string>& keys,
                    const std::chrono::milliseconds& timeout) {
  ask_store(*client_, [&](auto& client) { client.wait(keys, timeout); });
}

void RunStore::append(const std::string& key, const std::vector<uint8_t>& value) {
  ask_store(*client_, [&](auto& client) { client.append(key, chars_of(value)); });
}

std::vector<std::vector<uint8_t>> RunStore::multiGet(const std::vector<std::string>& keys) {
  std::vector<std::vector<uint8_t>> values;
  const auto texts = ask_store(*client_, [&](auto& client) { return client.get(keys, timeout_); });
  for (const std::string& text : texts) values.push_back(bytes_of(text));
  return values;
}

void RunStore::multiSet(const std::vector<std::string>& keys,
                        const std::vector<std::vector<uint8_t>>& values) {
  std::vector<std::string> texts;
  for (const std::vector<uint8_t>& value : values) texts.emplace_back(chars_of(value));
  ask_store(*client_, [&](auto& client) { client.multi_set(keys, texts); });
}

}  // namespace accelerant::dist
