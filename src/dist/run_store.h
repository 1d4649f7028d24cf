// The store of a run as c10d knows stores, for process groups and for our own channels.
//
// It stands in for c10d's TCPStore, which cannot tell strangers from processes of the run and
// listens at all addresses. Meanings and errors are those of TCPStore (DistStoreError,
// DistNetworkError). It has no queues, which nobody here uses.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "meet/store_client.h"

namespace accelerant::dist {

class RunStore : public c10d::Store {
 public:
  // `timeout`: for keys that are waited for, and for the connections of clones.
  RunStore(std::unique_ptr<meet::StoreClient> client, std::chrono::milliseconds timeout);

  // Has a connection of its own.
  c10::intrusive_ptr<c10d::Store> clone() override;

  using Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys,
            const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys,
                const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  const std::unique_ptr<meet::StoreClient> client_;
};

}  // namespace accelerant::dist
