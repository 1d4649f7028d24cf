#include "store/checked_blocks.h"

#include <accelerant/format/safetensors.h>
#include <core/files.h>
#include <gtest/gtest.h>
#include <store/checksum.h>
#include <store/file_writer.h>
#include <store/model_files.h>
#include <store/parallel_reads.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <random>

#include "support/expect_error.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::checkpoint;
namespace format = accelerant::format;

using Bytes = std::vector<std::byte>;

constexpr std::size_t kBlock = kChecksumBlock;

Bytes random_content(std::size_t size, unsigned seed) {
  std::mt19937 generator(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
  return bytes;
}

FileChecksums sums_of(std::span<const std::byte> content) {
  BlockChecksums sums(kBlock);
  sums.add(content);
  return {.size = content.size(), .blocks = sums.finish()};
}

TEST(Checksum, IsTheSameInOnePieceOrInMany) {
  for (const std::size_t size : {0U, 1U, 3U, 16U, 128U, 240U, 241U, 1000U, 70'000U, 1'048'576U}) {
    const Bytes content = random_content(size + 3, static_cast<unsigned>(size));
    for (const std::size_t shift : {0U, 1U, 3U}) {
      const auto bytes = std::span(content).subspan(shift, size);
      Checksum sum;
      sum.add(bytes.first(size / 3));
      sum.add(bytes.subspan(size / 3));
      EXPECT_EQ(checksum_of(bytes), sum.value()) << size;
    }
  }
}

// --- Bytes of one file ----------------------------------------------------------------------------

class CheckedFile : public testing::Test {
 protected:
  void write(const Bytes& content) {
    folder_.write("file", {reinterpret_cast<const char*>(content.data()), content.size()});
  }

  ListedFile expected() const { return {.sums = sums_of(content_), .list = "the/list"}; }

  TempFolder folder_;
  std::string path_ = folder_.path("file");
  Bytes content_ = random_content(3 * kBlock + 1234, 5);
};

TEST_F(CheckedFile, ReadsWhatTheFileHolds) {
  write(content_);
  const format::RandomAccessFile file(path_);
  std::mt19937 generator(random_seed());
  const CheckedBlocks blocks(file, path_, expected(), 2);
  for (int i = 0; i < 200; ++i) {
    const std::size_t begin = generator() % content_.size();
    const std::size_t size = generator() % (content_.size() - begin + 1);
    Bytes target(size);
    blocks.read(begin, target);
    EXPECT_TRUE(std::ranges::equal(target, std::span(content_).subspan(begin, size)));
  }
  blocks.check_rest(3);
}

TEST_F(CheckedFile, NoDamagedByteReachesTheTarget) {
  Bytes damaged = content_;
  const std::size_t at = 2 * kBlock + 77;
  damaged[at] ^= std::byte{1};
  write(damaged);
  const format::RandomAccessFile file(path_);
  const CheckedBlocks blocks(file, path_, expected(), 2);
  Bytes target(content_.size());
  const std::string error = whole_error_of([&] { blocks.read(0, target); });
  for (const char* part :
       {"file is damaged in bytes 2097152 to 3145727", "the/list", "others in 1 of 4 blocks"}) {
    EXPECT_TRUE(contains(error, part));
  }
  const auto filled = std::span(target).first(2 * kBlock);
  EXPECT_TRUE(std::ranges::equal(filled, std::span(content_).first(2 * kBlock)));
  EXPECT_TRUE(std::ranges::all_of(std::span(target).subspan(2 * kBlock),
                                  [](std::byte byte) { return byte == std::byte{}; }));
  Bytes small(10);
  EXPECT_NO_THROW(blocks.read(kBlock - 5, small));
  EXPECT_NO_THROW(blocks.read(3 * kBlock, small));
  EXPECT_TRUE(contains(whole_error_of([&] { blocks.read(2 * kBlock, small); }), "is damaged"));
  EXPECT_TRUE(contains(whole_error_of([&] { blocks.check_rest(4); }), "is damaged"));
}

TEST_F(CheckedFile, DamageThatNobodyReadIsFoundAtTheEnd) {
  for (const std::size_t at : {std::size_t{0}, kBlock, content_.size() - 1}) {
    Bytes damaged = content_;
    damaged[at] ^= std::byte{128};
    write(damaged);
    const format::RandomAccessFile file(path_);
    for (const int threads : {1, 4}) {
      const CheckedBlocks blocks(file, path_, expected(), 2);
      EXPECT_TRUE(contains(whole_error_of([&] { blocks.check_rest(threads); }), "is damaged"));
    }
  }
}

TEST_F(CheckedFile, AnotherSizeIsAnErrorAtOnce) {
  Bytes longer = content_;
  longer.emplace_back();
  write(longer);
  const format::RandomAccessFile file(path_);
  const std::string error = whole_error_of([&] { CheckedBlocks(file, path_, expected(), 2); });
  EXPECT_TRUE(contains(error, "is not the file that was saved"));
}

TEST_F(CheckedFile, AFileThatChangesLaterGivesOldBytesOrAnError) {
  write(content_);
  const format::RandomAccessFile file(path_);
  const CheckedBlocks blocks(file, path_, expected(), 2);
  Bytes target(kBlock / 2);
  blocks.read(kBlock, target);
  std::fstream(path_, std::ios::in | std::ios::out).seekp(kBlock + kBlock / 2).put('!').put('?');
  blocks.read(kBlock + kBlock / 2, target);  // a part of the block that was not asked for before
  EXPECT_TRUE(
      std::ranges::equal(target, std::span(content_).subspan(kBlock + kBlock / 2, kBlock / 2)));
  blocks.read(0, target);  // now another block is in memory
  EXPECT_TRUE(contains(whole_error_of([&] { blocks.read(kBlock + kBlock / 2, target); }),
                       "damaged in bytes 1048576 to 2097151"));
}

TEST_F(CheckedFile, DamageIsLookedForOnce) {
  Bytes damaged = content_;
  damaged[kBlock] ^= std::byte{1};
  write(damaged);
  const format::RandomAccessFile file(path_);
  const CheckedBlocks blocks(file, path_, expected(), 2);
  Bytes target(1);
  const auto error = [&] { return whole_error_of([&] { blocks.read(kBlock, target); }); };
  const std::string first = error();
  EXPECT_TRUE(contains(first, "others in 1 of 4 blocks"));
  damaged[2 * kBlock] ^= std::byte{1};
  write(damaged);
  EXPECT_EQ(error(), first);
}

TEST_F(CheckedFile, AFileThatShrinksIsAnError) {
  write(content_);
  const format::RandomAccessFile file(path_);
  const CheckedBlocks blocks(file, path_, expected(), 2);
  ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(content_.size() - 1)), 0);
  Bytes target(content_.size());
  EXPECT_TRUE(contains(whole_error_of([&] { blocks.read(0, target); }), "has shrunk"));
}

// --- Tensors --------------------------------------------------------------------------------------

// A file whose tensors begin and end within blocks, many of them in one.
class CheckedTensors : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<format::TensorToWrite> tensors;
    for (std::size_t i = 0; i < contents_.size(); ++i) {
      tensors.push_back({.name = "t" + std::to_string(i),
                         .dtype = format::DType::u8,
                         .shape = {static_cast<int64_t>(contents_[i].size())},
                         .data = contents_[i]});
    }
    format::save_safetensors(path_, tensors);
    const std::string text = TempFolder::content_of(path_);
    expected_ = {.sums = sums_of(std::as_bytes(std::span(text))), .list = "the/list"};
  }

  static std::vector<Bytes> contents() {
    std::vector<Bytes> all;
    for (unsigned i = 0; i < 60; ++i) {
      all.push_back(random_content(i % 20 == 7 ? 2 * kBlock + 13 * i : 1000 * i, i));
    }
    return all;
  }

  std::vector<TensorRead> reads_into(const WeightFile& file, std::vector<Bytes>& targets) const {
    std::vector<TensorRead> reads;
    for (const WeightTensor& tensor : file.tensors()) {
      Bytes& target = targets[static_cast<std::size_t>(std::stoi(tensor.name.substr(1)))];
      reads.push_back({&file, &tensor, 0, target});
    }
    return reads;
  }

  TempFolder folder_;
  std::string path_ = folder_.path("model.safetensors");
  std::vector<Bytes> contents_ = contents();
  ListedFile expected_;
};

TEST_F(CheckedTensors, AnyNumberOfThreadsReadsTheSame) {
  for (const int threads : {0, 1, 2, 7, 64}) {
    const auto file = open_weight_file(path_, expected_, threads);
    for (int pass = 0; pass < 2; ++pass) {  // in the second one all blocks are known
      std::vector<Bytes> targets;
      for (const Bytes& content : contents_) targets.emplace_back(content.size());
      auto reads = reads_into(*file, targets);
      std::ranges::shuffle(reads, std::mt19937(random_seed()));
      read_all(reads, threads);
      EXPECT_EQ(targets, contents_) << threads << " threads";
    }
    file->check_rest(threads);
  }
}

TEST_F(CheckedTensors, ManyFilesNeedNoMoreMemoryThanOne) {
  const auto buffers = std::make_shared<BlockBuffers>();
  constexpr int kThreads = 3;
  std::vector<std::unique_ptr<WeightFile>> files;
  std::vector<std::vector<Bytes>> targets(10);
  std::vector<TensorRead> reads;
  for (auto& of_file : targets) {
    files.push_back(open_weight_file(path_, expected_, kThreads, buffers));
    for (const Bytes& content : contents_) of_file.emplace_back(content.size());
    const auto more = reads_into(*files.back(), of_file);
    reads.insert(reads.end(), more.begin(), more.end());
  }
  read_all(reads, kThreads);
  for (const auto& file : files) file->check_rest(kThreads);
  for (const auto& of_file : targets) EXPECT_EQ(of_file, contents_);
  EXPECT_LE(buffers->spare(), std::size_t{kThreads});
}

TEST_F(CheckedTensors, OfTargetsThatOverlapTheLastCounts) {
  const auto file = open_weight_file(path_, expected_, 1);
  const auto stored = [&](const std::string& name) {
    return &*std::ranges::find(file->tensors(), name, &WeightTensor::name);
  };
  Bytes target(contents_[7].size());
  const auto part = std::span(target).subspan(5, contents_[27].size() - 1000);
  read_all({{file.get(), stored("t7"), 0, target}, {file.get(), stored("t27"), 1000, part}}, 8);
  EXPECT_TRUE(std::ranges::equal(part, std::span(contents_[27]).subspan(1000)));
}

bool is_old_or_new(std::byte byte, std::byte stored) {
  return byte == std::byte{} || byte == stored;
}

TEST_F(CheckedTensors, DamageAnywhereIsFoundAndLeavesOldOrNewBytes) {
  const std::string good = TempFolder::content_of(path_);
  std::mt19937 generator(random_seed());
  for (int i = 0; i < 40; ++i) {
    std::string damaged = good;
    const std::size_t at = i == 0 ? 3 : generator() % good.size();
    damaged[at] = static_cast<char>(damaged[at] ^ (1 << generator() % 8));
    folder_.write("model.safetensors", damaged);
    std::vector<Bytes> targets;
    for (const Bytes& content : contents_) targets.emplace_back(content.size());
    const std::string error = whole_error_of([&] {
      const auto file = open_weight_file(path_, expected_, 2);
      read_all(reads_into(*file, targets), 4);
      file->check_rest(2);
    });
    EXPECT_TRUE(contains(error, "model.safetensors is damaged in bytes")) << at;
    for (std::size_t tensor = 0; tensor < targets.size(); ++tensor) {
      EXPECT_TRUE(std::ranges::equal(targets[tensor], contents_[tensor], is_old_or_new)) << tensor;
    }
  }
}

TEST_F(CheckedTensors, AMissingFileSaysSo) {
  const std::string error =
      whole_error_of([&] { open_weight_file(folder_.path("gone.safetensors"), expected_, 1); });
  EXPECT_TRUE(contains(error, "A file of the model is missing"));
}

TEST_F(CheckedTensors, PartsOutsideOfATensorAreRefused) {
  const auto file = open_weight_file(path_, expected_, 1);
  Bytes target(2);
  const WeightTensor& last = file->tensors().back();
  EXPECT_TRUE(contains(whole_error_of([&] { file->read(last, last.bytes - 1, target); }),
                       "the part is outside the tensor"));
  EXPECT_TRUE(contains(whole_error_of([&] {
                         read_all({{file.get(), &last, last.bytes - 1, target}}, 1);
                       }),
                       "the part is outside the tensor"));
}

}  // namespace
