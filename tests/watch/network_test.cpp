#include "watch/network.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/random_seed.h"
#include "watch/node_list.h"

namespace {

using accelerant::dist::cores_of_quota;
using accelerant::dist::Environment;
using accelerant::dist::expand_node_list;
using accelerant::dist::expand_task_counts;
using accelerant::dist::gloo_endpoint;
using accelerant::dist::threads_per_process;

using Names = std::vector<std::string>;

TEST(NodeListTest, Forms) {
  EXPECT_EQ(expand_node_list("gpu3"), Names{"gpu3"});
  EXPECT_EQ(expand_node_list("node[001-004,7],gpu3"),
            (Names{"node001", "node002", "node003", "node004", "node7", "gpu3"}));
  EXPECT_EQ(expand_node_list("n[8-11]"), (Names{"n8", "n9", "n10", "n11"}));
  EXPECT_EQ(expand_node_list("n[08-11]"), (Names{"n08", "n09", "n10", "n11"}));
  EXPECT_EQ(
      expand_node_list("rack[1-2]-node[0-1].site"),
      (Names{"rack1-node0.site", "rack1-node1.site", "rack2-node0.site", "rack2-node1.site"}));
}

TEST(NodeListTest, WhatIsNoListIsAnError) {
  for (const char* bad :
       {"", "a,,b", "a[1-2", "a1-2]", "a[[1]]", "a[2-1]", "a[]", "a[1,]", "a[x]", "a[1-]", "a[-1]",
        "a[0-99999999]", "a[0-9999][0-9999]", "a]b[1", "a[1-2-3]", "a[99999999999999999999]"})
    EXPECT_TRUE(contains(whole_error_of([&] { expand_node_list(bad); }), bad)) << bad;
}

// Writes random lists together with the names they stand for.
class ListWriter {
 public:
  explicit ListWriter(unsigned seed) : random_(seed) {}

  std::string list;
  Names names;

  void write() {
    const int entries = pick(1, 4);
    for (int entry = 0; entry < entries; ++entry) {
      if (entry > 0) list += ',';
      Names made = {""};
      const int brackets = pick(0, 2);
      literal(made, /*may_be_empty=*/false);
      for (int i = 0; i < brackets; ++i) {
        numbers(made);
        literal(made, /*may_be_empty=*/true);
      }
      names.insert(names.end(), made.begin(), made.end());
    }
  }

 private:
  int pick(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }

  void literal(Names& made, bool may_be_empty) {
    std::string text;
    const int length = pick(may_be_empty ? 0 : 1, 4);
    for (int i = 0; i < length; ++i) text += "abcxyz-.09"[pick(0, 9)];
    list += text;
    for (std::string& name : made) name += text;
  }

  // Brackets with ranges, each with a width of its own.
  void numbers(Names& made) {
    Names values;
    list += '[';
    const int ranges = pick(1, 3);
    for (int range = 0; range < ranges; ++range) {
      if (range > 0) list += ',';
      const int first = pick(0, 12);
      const int last = first + pick(0, 5);
      const auto width = static_cast<size_t>(pick(1, 4));
      const auto padded = [&](int number) {
        std::string digits = std::to_string(number);
        while (digits.size() < width) digits = '0' + digits;
        return digits;
      };
      // All numbers are padded to the width of the first, as Slurm does.
      for (int number = first; number <= last; ++number) values.push_back(padded(number));
      list += padded(first);
      if (last > first || pick(0, 1) == 1) list += '-' + padded(last);
    }
    list += ']';
    Names longer;
    for (const std::string& name : made)
      for (const std::string& value : values) longer.push_back(name + value);
    made = longer;
  }

  std::mt19937 random_;
};

TEST(NodeListTest, RandomLists) {
  const unsigned seed = random_seed();
  for (unsigned i = 0; i < 2000; ++i) {
    ListWriter writer(seed + i);
    writer.write();
    ASSERT_EQ(expand_node_list(writer.list), writer.names) << writer.list << ", seed " << seed + i;
  }
}

TEST(TaskCountsTest, Forms) {
  EXPECT_EQ(expand_task_counts("4"), std::vector<int64_t>{4});
  EXPECT_EQ(expand_task_counts("2(x3),1"), (std::vector<int64_t>{2, 2, 2, 1}));
  for (const char* bad : {"", "2(x3", "2(x)", "x3", "2,", "2(3)", "2(x99999999)", "-1"})
    EXPECT_TRUE(contains(whole_error_of([&] { expand_task_counts(bad); }), bad)) << bad;
}

TEST(AddressTest, OneMachineUsesLoopback) {
  Environment environment;
  environment.num_processes = environment.local_num_processes = 4;
  environment.master_address = "no-such-host.invalid";
  EXPECT_EQ(gloo_endpoint(environment).name, "127.0.0.1");
  EXPECT_FALSE(gloo_endpoint(environment).is_interface);
}

TEST(AddressTest, ANamedInterfaceWins) {
  Environment environment;
  EXPECT_EQ(gloo_endpoint(environment, "lo").name, "lo");
  EXPECT_TRUE(gloo_endpoint(environment, "lo").is_interface);
  EXPECT_TRUE(
      contains(whole_error_of([&] { gloo_endpoint(environment, "nonesuch9"); }), "nonesuch9"));
  setenv("GLOO_SOCKET_IFNAME", "lo,eth7", 1);
  EXPECT_EQ(gloo_endpoint(environment).name, "lo");
  unsetenv("GLOO_SOCKET_IFNAME");
}

Environment one_of_two_machines(const std::string& master) {
  Environment environment;
  environment.num_processes = environment.num_machines = 2;
  environment.master_address = master;
  return environment;
}

TEST(AddressTest, AMasterThatCannotBeResolvedIsAnError) {
  const auto text =
      whole_error_of([] { gloo_endpoint(one_of_two_machines("no-such-host.invalid")); });
  EXPECT_TRUE(contains(text, "no-such-host.invalid"));
  EXPECT_TRUE(contains(text, "GLOO_SOCKET_IFNAME"));
}

TEST(AddressTest, BetweenMachinesItIsNeverLoopback) {
  // Debian resolves the machine's own name to this address. Without another interface there is no
  // answer.
  try {
    const std::string address = gloo_endpoint(one_of_two_machines("127.0.1.1")).name;
    EXPECT_FALSE(address.empty());
    EXPECT_FALSE(address.starts_with("127.")) << address;
  } catch (const accelerant::Error& error) {
    EXPECT_TRUE(contains(error.what(), "GLOO_SOCKET_IFNAME"));
  }
}

TEST(ThreadsTest, CoresAreShared) {
  EXPECT_EQ(cores_of_quota("150000 100000"), 1.5);
  EXPECT_EQ(cores_of_quota("max 100000"), std::nullopt);
  EXPECT_EQ(cores_of_quota(""), std::nullopt);

  Environment environment;
  const int alone = threads_per_process(environment);
  EXPECT_GE(alone, 1);
  environment.num_processes = environment.local_num_processes = 2;
  EXPECT_EQ(threads_per_process(environment), std::max(1, alone / 2));
  environment.num_processes = environment.local_num_processes = 100'000;
  EXPECT_EQ(threads_per_process(environment), 1);
}

}  // namespace
