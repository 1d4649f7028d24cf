// Reading tensors from files and from memory.
#include "accelerant/format/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "format/file_bytes.h"
#include "support/expect_error.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace {

using namespace accelerant::format;
using Ranges = std::vector<DimRange>;
using Shape = std::vector<std::int64_t>;

std::string read_whole(const SafetensorsFile& file, const std::string& name) {
  std::string target(file.info(name).bytes(), '\0');
  file.read(name, std::as_writable_bytes(std::span(target)));
  return target;
}

std::string read_slice(const SafetensorsFile& file, const std::string& name, const Ranges& ranges) {
  std::string target(file.slice_bytes(name, ranges), '\0');
  file.read_slice(name, ranges, std::as_writable_bytes(std::span(target)));
  return target;
}

const std::string two_tensors = file_with(
    "{" + entry("m", "U8", "3,4", "0,12") + "," + entry("s", "I16", "2", "12,16") + "}", 16);

TEST(SafetensorsFileTest, BothKindsOfAccess) {
  const TempFolder folder;
  const std::string path = folder.write("x.safetensors", two_tensors);
  for (const FileAccess access : {FileAccess::map, FileAccess::read}) {
    const SafetensorsFile file = SafetensorsFile::open(path, {.access = access});
    EXPECT_EQ(file.label(), path);
    EXPECT_EQ(file.names(), (std::vector<std::string_view>{"m", "s"}));
    EXPECT_EQ(read_whole(file, "m"), "abcdefghijkl");
    EXPECT_EQ(read_whole(file, "s"), "mnop");
    EXPECT_EQ(read_slice(file, "m", {{.begin = 1, .end = 2}}), "efgh");
    if (access == FileAccess::map) {
      EXPECT_EQ(as_text(file.view("s")), "mnop");
    } else {
      EXPECT_TRUE(contains(whole_error_of([&] { file.view("s"); }),
                           path + ": tensor 's': a view is not available"));
    }
  }
}

TEST(SafetensorsFileTest, ViewsOutliveMovesAndReplacedFiles) {
  const TempFolder folder;
  const std::string path = folder.write("x.safetensors", two_tensors);
  SafetensorsFile first = SafetensorsFile::open(path);
  const auto view = first.view("m");
  SafetensorsFile second = std::move(first);
  ASSERT_EQ(unlink(path.c_str()), 0);
  folder.write("x.safetensors", file_with("{}"));
  EXPECT_EQ(as_text(view), "abcdefghijkl");
  EXPECT_EQ(second.view("m").data(), view.data());
  EXPECT_EQ(read_whole(second, "m"), "abcdefghijkl");
}

TEST(SafetensorsFileTest, FilesThatCannotBeRead) {
  const TempFolder folder;
  const std::string missing = folder.path("missing");
  EXPECT_TRUE(contains(whole_error_of([&] { SafetensorsFile::open(missing); }),
                       missing + ": the file cannot be opened: No such file"));
  EXPECT_TRUE(
      contains(whole_error_of([&] { SafetensorsFile::open(folder.path()); }), "got a folder"));
  EXPECT_TRUE(contains(whole_error_of([] { SafetensorsFile::open("/dev/zero"); }), "a device"));
  for (const std::string& content : {std::string(), std::string(7, '\0')}) {
    const std::string path = folder.write("short", content);
    EXPECT_TRUE(contains(whole_error_of([&] { SafetensorsFile::open(path); }),
                         path + ": the file is too short"));
  }
}

TEST(SafetensorsFileTest, AFileThatShrinksIsAnError) {
  const TempFolder folder;
  const std::string path = folder.write("x.safetensors", two_tensors);
  const SafetensorsFile file = SafetensorsFile::open(path);
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(two_tensors.size()) - 2), 0);
  EXPECT_EQ(read_whole(file, "m"), "abcdefghijkl");
  EXPECT_TRUE(contains(whole_error_of([&] { read_whole(file, "s"); }), "has shrunk"));
}

TEST(SafetensorsFileTest, UnknownNames) {
  const SafetensorsFile file = parse(two_tensors);
  EXPECT_EQ(file.find("x"), nullptr);
  EXPECT_TRUE(contains(whole_error_of([&] { file.info("x"); }),
                       "no tensor named 'x'; the file has 2 tensors, the first is 'm'"));
  for (const auto& use :
       std::vector<std::function<void()>>{[&] { file.view("x"); }, [&] { file.read("x", {}); },
                                          [&] { file.slice_shape("x", {}); }}) {
    EXPECT_TRUE(contains(whole_error_of(use), "no tensor named 'x'"));
  }
}

TEST(SafetensorsFileTest, TargetsOfTheWrongSize) {
  const SafetensorsFile file = parse(two_tensors);
  std::vector<std::byte> target(11);
  EXPECT_TRUE(
      contains(whole_error_of([&] { file.read("m", target); }), "expected 12 bytes, got 11"));
  EXPECT_TRUE(contains(whole_error_of([&] {
                         file.read_slice("m", {{0, 2}}, target);
                       }),
                       "expected 8 bytes, got 11"));
}

TEST(SafetensorsFileTest, Parts) {
  const SafetensorsFile file = parse(two_tensors);
  std::string target(5, '\0');
  const auto bytes = std::as_writable_bytes(std::span(target));
  file.read_part("m", 7, bytes);
  EXPECT_EQ(target, "hijkl");
  file.read_part("m", 12, {});
  EXPECT_TRUE(contains(whole_error_of([&] { file.read_part("m", 8, bytes); }),
                       "got 5 bytes from byte 8 on"));
  EXPECT_TRUE(contains(whole_error_of([&] { file.read_part("m", ~std::uint64_t{0}, bytes); }),
                       "outside the tensor"));
}

TEST(SafetensorsFileTest, Slices) {
  const SafetensorsFile file = parse(two_tensors);
  EXPECT_EQ(read_slice(file, "m", {}), "abcdefghijkl");
  EXPECT_EQ(read_slice(file, "m", {{.begin = 1}}), "efghijkl");
  EXPECT_EQ(read_slice(file, "m", {{}, {.begin = 1, .end = 3}}), "bcfgjk");
  EXPECT_EQ(read_slice(file, "m", {{.begin = 2, .end = 3}, {.begin = 3}}), "l");
  EXPECT_EQ(read_slice(file, "m", {{.begin = 3}}), "");
  EXPECT_EQ(file.slice_shape("m", {{}, {.begin = 1, .end = 3}}), (Shape{3, 2}));
  EXPECT_EQ(file.slice_shape("m", {{.begin = 3}}), (Shape{0, 4}));
  EXPECT_EQ(read_slice(file, "s", {{.begin = 1}}), "op");
}

TEST(SafetensorsFileTest, SlicesOutsideOfTheTensor) {
  const SafetensorsFile file = parse(two_tensors);
  for (const DimRange range :
       {DimRange{-1, 2}, DimRange{2, 1}, DimRange{0, 4}, DimRange{4, 4}, DimRange{.begin = 4}}) {
    EXPECT_TRUE(contains(whole_error_of([&] { read_slice(file, "m", {range}); }),
                         "dimension 0 is outside the tensor"));
  }
  EXPECT_TRUE(contains(whole_error_of([&] {
                         read_slice(file, "m", {{}, {}, {}});
                       }),
                       "expected at most 2, got 3"));
}

TEST(SafetensorsFileTest, SlicesOfSubByteTypes) {
  const std::string bytes = file_with(
      "{" + entry("a", "F4", "3,4", "0,6") + "," + entry("b", "F6_E2M3", "4,3", "6,15") + "}", 15);
  const SafetensorsFile file = parse(bytes);
  EXPECT_EQ(read_slice(file, "a", {{.begin = 1}}), "cdef");
  EXPECT_EQ(read_slice(file, "a", {{}, {.begin = 2}}), "bdf");
  EXPECT_EQ(read_slice(file, "b", {}), "ghijklmno");
  EXPECT_EQ(read_slice(file, "b", {{.begin = 2, .end = 2}, {.begin = 1}}), "");
  for (const auto& [name, ranges] :
       std::vector<std::pair<std::string, Ranges>>{{"a", {{}, {.begin = 1}}},
                                                   {"a", {{}, {.end = 3}}},
                                                   {"b", {{.begin = 1}}},
                                                   {"b", {{}, {.end = 1}}}}) {
    EXPECT_TRUE(
        contains(whole_error_of([&] { read_slice(file, name, ranges); }), "at whole bytes"));
  }
}

// Compares slices with picking every element by itself. Files are large enough to be read through a
// buffer, with runs longer than the buffer and runs far apart.
TEST(SafetensorsFileTest, RandomSlices) {
  const TempFolder folder;
  const unsigned seed = random_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (const Shape& shape : {Shape{700, 1000}, Shape{30, 40, 1000}, Shape{5, 300'000},
                             Shape{3, 7, 1, 5, 9}, Shape{11}}) {
    const auto count =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    std::vector<std::uint16_t> values(static_cast<std::size_t>(count));
    for (auto& value : values) value = static_cast<std::uint16_t>(random());
    std::string sizes;
    for (const std::int64_t size : shape)
      sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    const std::string bytes =
        file_with("{" + entry("x", "U8", "1", "0,1") + "," +
                      entry("t", "U16", sizes, "1," + std::to_string(1 + 2 * count)) + "}",
                  "x" + as_text(std::as_bytes(std::span(values))));
    const std::string path = folder.write("random.safetensors", bytes);
    const SafetensorsFile file = SafetensorsFile::open(path, {.access = FileAccess::read});
    const SafetensorsFile memory = parse(bytes);
    for (int repeat = 0; repeat < 20; ++repeat) {
      Ranges ranges;
      std::vector<std::size_t> places = {0};
      for (const std::int64_t size : shape) {
        const std::int64_t begin = pick(0, size);
        ranges.push_back(pick(0, 2) == 0 ? DimRange{} : DimRange{begin, pick(begin, size)});
        std::vector<std::size_t> next;
        const std::int64_t end =
            ranges.back().end == DimRange::to_the_end ? size : ranges.back().end;
        for (const std::size_t place : places) {
          for (std::int64_t i = ranges.back().begin; i < end; ++i) {
            next.push_back(place * static_cast<std::size_t>(size) + static_cast<std::size_t>(i));
          }
        }
        places = std::move(next);
      }
      std::vector<std::uint16_t> expected;
      for (const std::size_t place : places) expected.push_back(values[place]);
      const std::string expected_bytes = as_text(std::as_bytes(std::span(expected)));
      ASSERT_TRUE(read_slice(file, "t", ranges) == expected_bytes);
      ASSERT_TRUE(read_slice(memory, "t", ranges) == expected_bytes);
    }
  }
}

TEST(SafetensorsFileTest, SeveralThreads) {
  const TempFolder folder;
  const SafetensorsFile file = SafetensorsFile::open(folder.write("x.safetensors", two_tensors));
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int repeat = 0; repeat < 200; ++repeat) EXPECT_EQ(read_whole(file, "m"), "abcdefghijkl");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
