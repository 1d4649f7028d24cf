#include "store/manifest.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <functional>
#include <random>

#include "store/checksum.h"
#include "support/expect_error.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::checkpoint;
using nlohmann::json;

Manifest sample_manifest() {
  Manifest manifest;
  manifest.files["model.safetensors"] = {.size = 1234, .xxh3 = 0x00ab00000000cdef};
  manifest.files["custom/größe.json"] = {.size = 0, .xxh3 = UINT64_MAX};
  manifest.content = {{"step", 12}, {"loss", 0.1}, {"names", {"a", "ü"}}, {"large", UINT64_MAX}};
  return manifest;
}

// The text of a changed manifest, with a matching checksum.
std::string changed(const std::function<void(json&)>& change) {
  json whole = json::parse(to_text(sample_manifest()));
  whole.erase("checksum");
  change(whole);
  whole["checksum"] = to_hex(checksum_of(whole.dump()));
  return whole.dump();
}

std::string error_after(const std::function<void(json&)>& change) {
  return error_of([&] { parse_manifest(changed(change)); });
}

TEST(Manifest, IsReadAsItWasWritten) {
  EXPECT_EQ(parse_manifest(to_text(sample_manifest())), sample_manifest());
  EXPECT_EQ(parse_manifest(to_text({})), Manifest());
  const json written = json::parse(to_text(sample_manifest()));
  EXPECT_EQ(written["format"], "accelerant-checkpoint");
  EXPECT_EQ(written["version"], 1);
  EXPECT_EQ(written["files"]["model.safetensors"]["xxh3"], "00ab00000000cdef");
}

TEST(Manifest, KeepsNumbersExactly) {
  Manifest manifest;
  for (const double value : {0.1, -0.0, 1e300, 5e-324, 1.0, 123456789.123456789}) {
    manifest.content["numbers"].push_back(value);
  }
  const Manifest read = parse_manifest(to_text(manifest));
  EXPECT_EQ(read, manifest);
  EXPECT_TRUE(std::signbit(read.content["numbers"][1].get<double>()));
}

TEST(Manifest, MayBeLaidOutAnew) {
  const std::string text = json::parse(to_text(sample_manifest())).dump(7);
  EXPECT_EQ(parse_manifest(text), sample_manifest());
}

TEST(Manifest, EveryFlippedBitIsNoticed) {
  const std::string good = to_text(sample_manifest());
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string text = good;
      text[at] = static_cast<char>(text[at] ^ (1 << bit));
      EXPECT_THROW(parse_manifest(text), accelerant::Error) << text;
    }
  }
}

TEST(Manifest, EveryShorterTextIsRefused) {
  const std::string good = to_text(sample_manifest());
  for (std::size_t size = 0; size + 1 < good.size(); ++size) {  // the last is a line break
    EXPECT_THROW(parse_manifest(good.substr(0, size)), accelerant::Error) << size;
  }
}

TEST(Manifest, ANewerVersionIsToldAsSuch) {
  const std::string text = error_after([](json& whole) {
    whole = {{"format", kManifestFormat}, {"version", 2}};
  });
  EXPECT_TRUE(contains(text, "version 1 of the format, got version 2"));
  EXPECT_TRUE(contains(text, "a newer version of Accelerant wrote it"));
  EXPECT_TRUE(contains(error_after([](json& whole) { whole["version"] = 0; }), "got version 0"));
  EXPECT_TRUE(contains(error_after([](json& whole) { whole["version"] = "x"; }), "version \"x\""));
}

TEST(Manifest, WhatIsNotAsExpectedIsRefused) {
  const auto refused = [](const std::function<void(json&)>& change, const char* why) {
    EXPECT_TRUE(contains(error_after(change), why));
  };
  refused([](json& whole) { whole["format"] = "other"; }, "the format 'accelerant-checkpoint'");
  refused([](json& whole) { whole.erase("files"); }, "a field files");
  refused([](json& whole) { whole["more"] = 1; }, "no other fields");
  refused([](json& whole) { whole["files"] = 3; }, "files to be an object");
  refused([](json& whole) { whole["content"] = {1}; }, "content to be an object");
  const auto in_file = [&](const char* field, json value, const char* why) {
    refused([&](json& whole) { whole["files"]["model.safetensors"][field] = value; }, why);
  };
  in_file("size", -1, "the size of the file 'model.safetensors'");
  in_file("size", 1.5, "the size");
  in_file("size", "12", "the size");
  in_file("xxh3", 12, "16 digits");
  in_file("xxh3", "00AB00000000CDEF", "16 digits");
  in_file("xxh3", "ab", "16 digits");
  in_file("more", 1, "no other fields");
  for (const char* text : {"", "[]", "3", "null", "{}", "\"x\"", "\"accelerant-checkpoint\"",
                           "{\"format\":", "\xff\xfe"}) {
    EXPECT_THROW(parse_manifest(text), accelerant::Error) << text;
  }
}

TEST(Manifest, NamesThatLeaveTheFolderAreRefused) {
  for (const std::string name : {"", "/", "/x", "../x", "..", ".", "./x", "a/../../b", "a/..",
                                 "a//b", "a/", "a/./b", "manifest.json"}) {
    Manifest manifest;
    manifest.files[name] = {};
    EXPECT_TRUE(contains(error_of([&] { to_text(manifest); }), "cannot have the name")) << name;
    EXPECT_TRUE(contains(error_after([&](json& whole) {
                           whole["files"][name] = {{"size", 1}, {"xxh3", "0123456789abcdef"}};
                         }),
                         "cannot have the name"))
        << name;
  }
  EXPECT_THROW(check_file_name(std::string("a\0b", 3)), accelerant::Error);
  for (const char* name : {"a", "..a", "a..", "a/b/c", "...", "sub/manifest.json", " "}) {
    EXPECT_NO_THROW(check_file_name(name)) << name;
  }
}

TEST(Manifest, IsNotWrittenIfItCouldNotBeRead) {
  Manifest manifest;
  manifest.content = {{"text", "\xff"}};
  EXPECT_TRUE(contains(error_of([&] { to_text(manifest); }), "UTF-8"));
  manifest.content = json::array();
  EXPECT_TRUE(contains(error_of([&] { to_text(manifest); }), "content to be an object"));
  manifest.content = {{"text", std::string(17 << 20, 'x')}};
  EXPECT_TRUE(contains(error_of([&] { to_text(manifest); }), "at most 16777216 bytes"));
}

TEST(Manifest, EndlessNestingIsRefused) {
  const std::string deep(1 << 20, '[');
  EXPECT_TRUE(contains(error_of([&] { parse_manifest(deep); }), "at most 64 levels"));
}

TEST(Manifest, ALargeFileIsNotRead) {
  const TempFolder folder;
  folder.write("manifest.json", "");
  ASSERT_EQ(truncate(folder.path("manifest.json").c_str(), off_t{1} << 40), 0);
  EXPECT_TRUE(contains(error_of([&] { read_manifest(folder.path()); }), "File too large"));
}

TEST(Manifest, RandomTextsNeverDoMoreThanThrow) {
  const unsigned seed = random_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::string good = to_text(sample_manifest());
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (unsigned edits = 1 + random() % 4; edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      const std::size_t from = random() % good.size();
      text.replace(at, random() % 9, good.substr(from, random() % 9));
      if (text.empty()) text = "{";
    }
    try {
      EXPECT_EQ(parse_manifest(text), sample_manifest()) << text;
    } catch (const accelerant::Error&) {
    }
  }
}

TEST(Checksum, IsXxh3) {
  EXPECT_EQ(to_hex(checksum_of("")), "2d06800538d394c2");  // from the reference implementation
  Checksum in_pieces;
  for (const char byte : std::string("accelerant"))
    in_pieces.add({reinterpret_cast<const std::byte*>(&byte), 1});
  EXPECT_EQ(in_pieces.value(), checksum_of("accelerant"));
  EXPECT_EQ(from_hex(to_hex(0x0123456789abcdef)), 0x0123456789abcdefu);
}

}  // namespace
