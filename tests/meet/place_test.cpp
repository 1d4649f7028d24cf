#include "meet/place.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

#include "meet/interfaces.h"
#include "support/expect_error.h"

namespace {

using accelerant::meet::address_to_others;
using accelerant::meet::addresses_of_this_machine;
using accelerant::meet::bind_at;
using accelerant::meet::Bound;
using accelerant::meet::is_at_loopback;
using accelerant::meet::Place;
using accelerant::meet::port_of;
using accelerant::meet::resolve;

TEST(AddressTest, ChoosesAnInterfaceThatLeadsOut) {
  EXPECT_EQ(address_to_others({{.interface = "lo", .address = "127.0.0.1", .loopback = true},
                               {.interface = "docker0", .address = "172.17.0.1"},
                               {.interface = "eth0", .address = "2001:db8::5"},
                               {.interface = "eth1", .address = "10.0.0.5"}}),
            "10.0.0.5");
  EXPECT_EQ(address_to_others({{.interface = "docker0", .address = "172.17.0.1"},
                               {.interface = "eth0", .address = "fe80::1"},
                               {.interface = "eth0", .address = "2001:db8::5"}}),
            "2001:db8::5");
  // Between two containers the bridge may be the only interface.
  EXPECT_EQ(address_to_others({{.interface = "veth1", .address = "10.9.0.1"}}), "10.9.0.1");
  EXPECT_EQ(address_to_others({{.interface = "lo", .address = "127.0.0.1", .loopback = true},
                               {.interface = "eth0", .address = "fe80::1"}}),
            std::nullopt);
}

std::string bound_address(const Bound& bound) {
  sockaddr_storage address = {};
  socklen_t size = sizeof address;
  EXPECT_EQ(getsockname(bound.socket.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return accelerant::meet::address_text(reinterpret_cast<const sockaddr*>(&address));
}

TEST(PlaceTest, ASocketIsBoundToTheAddressAskedForAndToNoOther) {
  const Bound four = bind_at({.host = "127.0.0.1"});
  ASSERT_TRUE(four.socket.is_open()) << four.reason;
  EXPECT_EQ(bound_address(four), "127.0.0.1");
  EXPECT_GT(port_of(four.socket.get()), 0);
  EXPECT_TRUE(bind_at({.host = "localhost"}).socket.is_open());
  if (const Bound six = bind_at({.host = "::1"}); six.socket.is_open()) {
    EXPECT_EQ(bound_address(six), "::1");
  }
  if (const auto address = address_to_others(addresses_of_this_machine())) {
    EXPECT_EQ(bound_address(bind_at({.host = *address, .several_machines = true})), *address);
  }
}

TEST(PlaceTest, WhetherOthersCanReachASocketIsKnown) {
  EXPECT_TRUE(is_at_loopback(bind_at({.host = "localhost"}).socket.get()));
  EXPECT_TRUE(is_at_loopback(bind_at({.host = "127.0.0.3"}).socket.get()));
  EXPECT_FALSE(is_at_loopback(bind_at({.host = "0.0.0.0"}).socket.get()));
  EXPECT_FALSE(is_at_loopback(-1));
  if (const auto address = address_to_others(addresses_of_this_machine())) {
    EXPECT_FALSE(is_at_loopback(bind_at({.host = *address}).socket.get()));
  }
}

TEST(PlaceTest, WhatCannotBeBoundIsExplained) {
  // Addresses for documentation, which no machine has.
  const Bound foreign = bind_at({.host = "192.0.2.7", .port = 29500, .several_machines = true});
  EXPECT_FALSE(foreign.socket.is_open());
  EXPECT_EQ(foreign.error, EADDRNOTAVAIL);
  EXPECT_TRUE(contains(foreign.reason, "192.0.2.7 is not an address of this machine"));
  const Bound unknown = bind_at({.host = "no-such-host.invalid"});
  EXPECT_TRUE(contains(unknown.reason, "no-such-host.invalid cannot be resolved"));
  const Bound one = bind_at({});
  ASSERT_EQ(listen(one.socket.get(), 1), 0);
  const Bound two = bind_at({.port = port_of(one.socket.get())});
  EXPECT_EQ(two.error, EADDRINUSE);
  EXPECT_EQ(two.reason, "it is in use");
}

// Debian gives the machine's own name the address 127.0.1.1, which no other machine can reach.
TEST(PlaceTest, ANameThatIsLoopbackHereStandsForTheAddressThatOthersSee) {
  const auto to_others = address_to_others(addresses_of_this_machine());
  if (!to_others) GTEST_SKIP() << "no address leads out of this machine";
  const std::string name = "ip6-localhost";  // any name but localhost; it is in most /etc/hosts
  if (resolve({.host = name}).endpoints.empty()) GTEST_SKIP() << name << " is not known here";
  EXPECT_TRUE(resolve({.host = name}).endpoints.front().is_loopback());
  const Place between = {.host = name, .several_machines = true};
  EXPECT_EQ(resolve(between).endpoints.front().text(), *to_others);
  EXPECT_EQ(bound_address(bind_at(between)), *to_others);
  // Who writes a loopback address means it.
  EXPECT_EQ(bound_address(bind_at({.host = "127.0.0.1", .several_machines = true})), "127.0.0.1");
}

TEST(PlaceTest, Texts) {
  EXPECT_EQ((Place{.host = "10.0.0.1", .port = 29500}).text(), "10.0.0.1:29500");
  EXPECT_EQ((Place{.host = "::1", .port = 29500}).text(), "[::1]:29500");
  EXPECT_EQ(port_of(-1), 0);
  EXPECT_EQ(port_of(0), 0);  // not a socket
}

}  // namespace
