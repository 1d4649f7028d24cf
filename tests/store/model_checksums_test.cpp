#include "store/model_checksums.h"

#include <accelerant/core/failpoint.h>
#include <accelerant/format/safetensors.h>
#include <core/files.h>
#include <gtest/gtest.h>
#include <store/checksum.h>
#include <store/file_writer.h>
#include <store/model_files.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>

#include "store/sample_model.h"
#include "support/expect_error.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::checkpoint;
using accelerant::entries_of;
using accelerant::path_exists;
namespace format = accelerant::format;
using namespace sample_model;

std::string random_text(std::size_t size, unsigned seed) {
  std::mt19937 generator(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(generator());
  return text;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

FileChecksums written(const std::string& path, const std::string& content, std::size_t piece) {
  FileWriter file(path, SumUp::blocks);
  for (std::size_t at = 0; at < content.size(); at += piece) {
    file.write(bytes_of(content).subspan(at, std::min(piece, content.size() - at)));
  }
  return file.finish_blocks();
}

void read_while_comparing(const std::string& path) {
  const WeightFiles files = open_checked_model(path, 2, Compare::while_reading);
  value_in(files);
  for (const auto& file : files) file->check_rest(2);
}

TEST(ModelChecksums, AreTheSameHoweverTheFileIsWritten) {
  const TempFolder folder;
  const std::string content = random_text(2 * kChecksumBlock + 5, 1);
  const FileChecksums sums = written(folder.path("a"), content, 1000);
  EXPECT_EQ(written(folder.path("b"), content, kChecksumBlock + 1000), sums);
  EXPECT_EQ(sums.size, content.size());
  ASSERT_EQ(sums.blocks.size(), 3U);
  const std::string_view text = content;
  EXPECT_EQ(sums.blocks[1], checksum_of(text.substr(kChecksumBlock, kChecksumBlock)));
  EXPECT_EQ(sums.blocks[2], checksum_of(text.substr(2 * kChecksumBlock)));
  EXPECT_EQ(written(folder.path("d"), content, 600'000), sums);
  EXPECT_TRUE(written(folder.path("c"), "", 1).blocks.empty());
  for (const int threads : {0, 1, 2, 16}) {
    EXPECT_EQ(damage_of(folder.path("a"), sums, "list", threads), std::nullopt);
  }
}

TEST(ModelChecksums, ComeBackFromTheirText) {
  const ModelChecksums sums = {
      {"model.safetensors", {.size = kChecksumBlock + 1, .blocks = {1, ~0ULL}}},
      {"empty", {.size = 0, .blocks = {}}}};
  const std::string text = to_text(sums);
  EXPECT_EQ(parse_model_checksums(text), sums);
  const auto refused = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return whole_error_of([&] { parse_model_checksums(changed, "here"); });
  };
  const std::string error = refused("ffffffffffffffff", "fffffffffffffffe");
  EXPECT_TRUE(contains(error, "here is not a valid list of a model's checksums"));
  EXPECT_TRUE(contains(error, "the file is damaged; without the list"));
  EXPECT_TRUE(contains(refused("\"version\": 1", "\"version\": 2"), "a newer version"));
  EXPECT_TRUE(contains(refused("accelerant-model", "accelerant-other"), "the format"));
  for (std::size_t length = 0; length + 1 < text.size(); ++length) {
    EXPECT_THROW(parse_model_checksums(text.substr(0, length)), accelerant::Error);
  }
}

TEST(ModelChecksums, ListsThatNobodyWritesAreRefused) {
  const auto refused = [](const ModelChecksums& sums) {
    return whole_error_of([&] { parse_model_checksums(to_text(sums)); });
  };
  EXPECT_TRUE(contains(refused({{"a", {.size = 1, .blocks = {}}}}), "for each block"));
  EXPECT_TRUE(contains(refused({{"a", {.size = 0, .block_bytes = 0, .blocks = {}}}}), "blocks of"));
  EXPECT_TRUE(contains(refused({{"a", {.block_bytes = 16 << 20}}}), "4096 to 8388608 bytes"));
  EXPECT_TRUE(contains(refused({{"a", {.size = ~0ULL, .block_bytes = 4096, .blocks = {1}}}}),
                       "for each block"));
  EXPECT_TRUE(contains(refused({{"../a", {}}}), "invalid name"));
}

TEST(ModelChecksums, DamageIsFoundAndNamed) {
  const TempFolder folder;
  std::vector<std::byte> data(10 << 20);
  format::save_safetensors(folder.path("model.safetensors"),
                           {{.name = "first",
                             .dtype = format::DType::u8,
                             .shape = {6 << 20},
                             .data = std::span(data).first(6 << 20)},
                            {.name = "second",
                             .dtype = format::DType::u8,
                             .shape = {4 << 20},
                             .data = std::span(data).first(4 << 20)}});
  const std::string content = TempFolder::content_of(folder.path("model.safetensors"));
  const FileChecksums sums = written(folder.path("copy"), content, content.size());
  const auto damage_with = [&](std::size_t at, std::size_t size) {
    std::string changed = content;
    for (std::size_t i = at; i < at + size; ++i) changed[i] = static_cast<char>(~changed[i]);
    folder.write("model.safetensors", changed);
    return damage_of(folder.path("model.safetensors"), sums, "the/list", 2).value_or("nothing");
  };
  EXPECT_EQ(damage_with(0, 0), "nothing");
  std::string text = damage_with(6 << 20, 1);
  for (const char* part :
       {"model.safetensors is damaged in bytes 6291456 to 7340031 (tensor 'first', "
        "tensor 'second')",
        "1 of 11 blocks", "remove the/list"}) {
    EXPECT_TRUE(contains(text, part));
  }
  text = damage_with(content.size() - 1, 1);
  EXPECT_TRUE(contains(text, "(tensor 'second')")) << text;
  EXPECT_TRUE(contains(text, "to " + std::to_string(content.size() - 1) + " ("));
  EXPECT_TRUE(contains(damage_with(8, 1), "bytes 0 to 1048575 (the header, which cannot be read)"));
  EXPECT_TRUE(contains(damage_with(3 << 20, 7 << 20), "7 of 11 blocks"));
  text = damage_of(folder.path("gone"), sums, "the/list", 2).value_or("nothing");
  EXPECT_TRUE(contains(text, "A file of the model is missing: " + folder.path("gone")));
  EXPECT_TRUE(contains(text, "remove the/list"));
  ASSERT_EQ(::truncate(folder.path("model.safetensors").c_str(), 1000), 0);
  text = damage_of(folder.path("model.safetensors"), sums, "list", 2).value_or("nothing");
  EXPECT_TRUE(contains(text, "is not the file that was saved")) << text;
  EXPECT_TRUE(contains(text, "got 1000")) << text;
}

TEST(ModelChecksums, AnyChangedByteOfAModelIsNoticed) {
  const TempFolder folder;
  save(folder.path(), kTwo, 7, /*with_sums=*/true);
  std::mt19937 generator(random_seed());
  const Names files = entries_of(folder.path());
  EXPECT_EQ(files.size(), 4U);
  EXPECT_EQ(value_in(open_checked_model(folder.path(), 2)), 7);
  EXPECT_EQ(value_in(open_checked_model(folder.path(), 2, Compare::while_reading)), 7);
  int unnoticed = 0;
  for (const std::string& name : files) {
    const std::string content = TempFolder::content_of(folder.path(name));
    for (int i = 0; i < 100; ++i) {
      std::string changed = content;
      // The last byte of the list is a line break that may be missing.
      const std::size_t at = generator() % (content.size() - 1);
      if (i % 4 == 0) {
        changed.resize(at);
      } else {
        changed[at] = static_cast<char>(changed[at] ^ (1 << generator() % 8));
      }
      folder.write(name, changed);
      const std::string error = whole_error_of([&] { open_checked_model(folder.path(), 2); });
      EXPECT_TRUE(contains(error, name)) << at << " " << error;
      EXPECT_TRUE(contains(whole_error_of([&] { read_while_comparing(folder.path()); }), name))
          << at;
      try {
        open_model(folder.path());
        unnoticed += static_cast<int>(name.ends_with(".safetensors"));
      } catch (const accelerant::Error&) {
      }
    }
    folder.write(name, content);
  }
  EXPECT_GT(unnoticed, 50);  // without the list
}

TEST(ModelChecksums, FollowEveryChangeOfTheModel) {
  const TempFolder folder;
  folder.write("config.json", "{}");
  save(folder.path(), kTwo, 1, true);
  EXPECT_EQ(checksums_of_model(folder.path())->size(), 3U);
  save(folder.path(), kOne, 2, true);
  EXPECT_EQ(entries_of(folder.path()), (Names{"config.json", kModelChecksumsName, kOne[0]}));
  EXPECT_EQ(checksums_of_model(folder.path())->size(), 1U);
  EXPECT_EQ(value_in(open_checked_model(folder.path(), 1)), 2);
  save(folder.path(), kTwo, 3, false);
  EXPECT_FALSE(path_exists(folder.path(kModelChecksumsName)));
  EXPECT_EQ(value_in(open_checked_model(folder.path(), 1)), 3);
  EXPECT_EQ(entries_of(folder.path()).size(), 4U);
}

TEST(ModelChecksums, WhatAnotherProgramAddsIsNotCompared) {
  const TempFolder folder;
  save(folder.path(), kOne, 1, true);
  std::vector<std::byte> data(3);
  format::save_safetensors(folder.path("other.safetensors"),
                           {{.name = "x", .dtype = format::DType::u8, .shape = {3}, .data = data}});
  EXPECT_NO_THROW(check_listed_file(folder.path("other.safetensors"), 1));
  EXPECT_EQ(value_in(open_checked_model(folder.path("other.safetensors"), 1)), 0);
  // What replaces a file on purpose is accused until the list is removed, as the Error says.
  format::save_safetensors(folder.path(kOne[0]),
                           {{.name = "x", .dtype = format::DType::u8, .shape = {3}, .data = data}});
  const std::string error = whole_error_of([&] { open_checked_model(folder.path(), 1); });
  EXPECT_TRUE(
      contains(error, "if it was replaced on purpose, remove " + folder.path(kModelChecksumsName)));
  forget_checksums_of(folder.path("other.safetensors"));
  EXPECT_TRUE(path_exists(folder.path(kModelChecksumsName)));
  forget_checksums_of(folder.path(kOne[0]));
  EXPECT_FALSE(path_exists(folder.path(kModelChecksumsName)));
  EXPECT_EQ(value_in(open_checked_model(folder.path(), 1)), 0);
}

TEST(ModelChecksums, TheListGoesWithAnyOfItsFiles) {
  const TempFolder folder;
  save(folder.path(), kTwo, 1, true);
  forget_checksums_of(folder.path(kTwo[0]));
  EXPECT_FALSE(path_exists(folder.path(kModelChecksumsName)));
  EXPECT_EQ(value_in(open_checked_model(folder.path(), 1)), 1);
}

// A reader may come at any moment between the renames of a save.
class ReplacedModel : public testing::TestWithParam<std::tuple<Compare, Names>> {};

TEST_P(ReplacedModel, IsNeverAccusedNorMixedWithTheOneBefore) {
  const auto& [when, shards] = GetParam();
  const TempFolder folder;
  save(folder.path(), shards, 0, true);
  std::atomic<bool> is_over = false;
  std::jthread writer([&] {
    for (unsigned char value = 1; value < 60; ++value) {
      save(folder.path(), shards, value, value % 5 != 0);
    }
    is_over = true;
  });
  int last = 0;
  int reads = 0;
  while (!is_over) {
    const WeightFiles files = open_checked_model(folder.path(), 1, when);
    const int value = value_in(files);
    for (const auto& file : files) file->check_rest(1);
    EXPECT_GE(value, last);  // -1 if the shards are those of two saves
    last = value;
    ++reads;
  }
  std::cout << reads << " reads\n";
}

// The value that a process reads which stops between two shards, while the model is saved again.
int value_read_across_a_save(const std::string& folder, bool has_list, Compare when) {
  save(folder, kTwo, 1, has_list);
  const pid_t reader = ::fork();
  if (reader == 0) {
    ::setenv("ACCELERANT_FAILPOINT", "model.file_opened:stop", 1);
    accelerant::reload_failpoints();
    ::_exit(value_in(open_checked_model(folder, 1, when)));
  }
  int status = 0;
  ::waitpid(reader, &status, WUNTRACED);
  EXPECT_TRUE(WIFSTOPPED(status));
  save(folder, kTwo, 2, has_list);
  ::kill(reader, SIGCONT);
  ::waitpid(reader, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ModelReplacedBetweenItsShards, IsReadAgain) {
  for (const bool has_list : {true, false}) {
    for (const Compare when : {Compare::before_opening, Compare::while_reading}) {
      const TempFolder folder;
      EXPECT_EQ(value_read_across_a_save(folder.path(), has_list, when), 2)
          << (has_list ? "with a list" : "without one");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Compared, ReplacedModel,
                         testing::Combine(testing::Values(Compare::before_opening,
                                                          Compare::while_reading),
                                          testing::Values(kOne, kTwo)));

}  // namespace
