#include <accelerant/data/csv.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/random_seed.h"
#include "support/temp_folder.h"

namespace csv_test {
namespace {

using accelerant::data::CsvHeader;
using accelerant::data::CsvMissing;
using accelerant::data::CsvOptions;
using accelerant::data::CsvTable;
using accelerant::data::read_csv;

using Names = std::vector<std::string>;

class Csv : public testing::Test {
 protected:
  CsvTable read(const std::string& content, const CsvOptions& options = {}) const {
    return read_csv(folder_.write("table.csv", content), options);
  }

  // The error without the path it must begin with.
  std::string refusal(const std::string& content, const CsvOptions& options = {}) const {
    const std::string message = whole_error_of([&] { read(content, options); });
    const std::string path = folder_.path("table.csv");
    EXPECT_EQ(message.substr(0, path.size()), path);
    return message.substr(std::min(path.size(), message.size()));
  }

  void expect_values(const std::string& content, const at::Tensor& expected,
                     const CsvOptions& options = {}) const {
    const CsvTable table = read(content, options);
    EXPECT_EQ(table.values.scalar_type(), options.dtype);
    EXPECT_TRUE(table.values.equal(expected.to(options.dtype))) << table.values;
  }

  TempFolder folder_;
  const at::Tensor two_by_two_ = torch::tensor({{1.0, 2.5}, {-3.0, 4e2}});
};

TEST_F(Csv, PlainNumbers) {
  expect_values("1,2.5\n-3,4e2\n", two_by_two_);
  EXPECT_TRUE(read("1,2\n").names.empty());
  expect_values("7", torch::tensor({{7}}));
}

TEST_F(Csv, LineEndsBlankLinesAndSpacesDoNotMatter) {
  for (const char* content : {
           "1,2.5\r\n-3,4e2\r\n",
           "1,2.5\n-3,4e2",
           "1,2.5\r\n-3,4e2\r",
           "\n\n1,2.5\n   \n\t\n\r\n-3,4e2\n\n\n",
           " 1 ,\t2.5\n -3\t, +4e2 \n",
           "\xEF\xBB\xBF"
           "1,2.5\n-3,4e2\n",
           "\"1\",2.5\n-3,\"4e2\"\n",
           " \"1\" , \"2.5\"\n-3,4e2\n",
       }) {
    expect_values(content, two_by_two_);
  }
}

TEST_F(Csv, HeadersGiveNames) {
  const CsvTable table = read("x,\"y, \"\"why\"\"\"\n1,2.5\n-3,4e2\n");
  EXPECT_EQ(table.names, (Names{"x", "y, \"why\""}));
  EXPECT_TRUE(table.values.equal(two_by_two_.to(torch::kFloat)));
  EXPECT_EQ(read("a,b\n").values.sizes(), at::IntArrayRef({0, 2}));
  EXPECT_EQ(read("\"two\nlines\",b\n1,2\n").names[0], "two\nlines");
  EXPECT_EQ(read("2019,2020\n1,2\n", {.header = CsvHeader::yes}).names, (Names{"2019", "2020"}));
  EXPECT_EQ(read("id,,b\n1,2,3\n").names, (Names{"id", "", "b"}));
  EXPECT_EQ(read(",\n", {.missing = CsvMissing::nan}).values.size(0), 1);  // no text: values
}

TEST_F(Csv, AFirstLineThatMayBeEitherIsRefused) {
  const std::string content = "id,2019\n1,2\n";
  EXPECT_TRUE(contains(refusal(content),
                       ", line 1: this may be a header or values: column 2 is a "
                       "number, column 1 ('id') is not"));
  expect_values(content, torch::tensor({{1, 2}}), {.header = CsvHeader::yes});
  EXPECT_TRUE(
      contains(refusal(content, {.header = CsvHeader::no}), "line 1: column 1: 'id' is no"));
}

TEST_F(Csv, ColumnsAreChosenByNameOrPlace) {
  const std::string content = "who,a,b,c\nAnn,1,2,3\n\"Bo, the\nsecond\",4,5,6\n";
  const CsvTable table = read(content, {.columns = {"c", 1, std::string("a")}});
  EXPECT_EQ(table.names, (Names{"c", "a", "a"}));
  EXPECT_TRUE(table.values.equal(torch::tensor({{3, 1, 1}, {6, 4, 4}}, torch::kFloat)));
  EXPECT_TRUE(contains(refusal(content, {.columns = {"d"}}),
                       "no column named 'd': expected one of 'who', 'a', 'b', 'c'"));
  EXPECT_TRUE(
      contains(refusal(content, {.columns = {4}}), "no such column: expected 0 to 3, got 4"));
  EXPECT_TRUE(contains(refusal(content, {.columns = {-1}}), "got -1"));
  EXPECT_TRUE(contains(refusal("1,2\n", {.columns = {"a"}}), "no header: name columns by"));
  EXPECT_TRUE(contains(refusal("a,a\n1,2\n", {.columns = {"a"}}), "several columns"));
}

TEST_F(Csv, OtherDelimiters) {
  expect_values("1;2.5\n-3;4e2\n", two_by_two_, {.delimiter = ';'});
  expect_values("1\t2.5\n-3\t 4e2\n", two_by_two_, {.delimiter = '\t'});
  expect_values("1 2.5\n-3 4e2\n", two_by_two_, {.delimiter = ' '});
  for (const char delimiter : {'"', '\n', '\r', '-', '.', 'e', '0', '\0'}) {
    const std::string message = whole_error_of([&] { read("1\n", {.delimiter = delimiter}); });
    EXPECT_TRUE(contains(message, "delimiter")) << delimiter;
  }
}

TEST_F(Csv, MissingValuesAreRefusedOrNan) {
  const std::string content = "a,b\n1,\n\"\",2\n NA , \n";
  EXPECT_EQ(refusal(content),
            ", line 2: column 2 ('b'): the value is missing; missing = nan would allow that");
  EXPECT_TRUE(
      contains(refusal(content, {.missing = CsvMissing::nan}), "line 4: column 1 ('a'): 'NA'"));
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {
    const at::Tensor values =
        read(content, {.dtype = type, .missing = CsvMissing::nan, .missing_marks = {"-", "NA"}})
            .values;
    EXPECT_TRUE(values.isnan().equal(torch::tensor({{0, 1}, {1, 0}, {1, 1}}, torch::kBool)));
  }
  // A mark may look like a number.
  EXPECT_TRUE(std::isnan(read("-999\n1\n", {.missing = CsvMissing::nan, .missing_marks = {"-999"}})
                             .values[0][0]
                             .item<double>()));
  EXPECT_TRUE(contains(
      whole_error_of([&] { read("1\n", {.dtype = torch::kInt64, .missing = CsvMissing::nan}); }),
      "needs a floating-point type: got int64"));
}

TEST_F(Csv, IntegersAreExact) {
  const int64_t large = 9007199254740993;  // not a double
  expect_values("9007199254740993,-1\n", torch::tensor({{large, int64_t{-1}}}),
                {.dtype = torch::kInt64});
  expect_values("-128,+127\n", torch::tensor({{-128, 127}}), {.dtype = torch::kInt8});
  expect_values("0,255\n", torch::tensor({{0, 255}}), {.dtype = torch::kUInt8});
  EXPECT_TRUE(
      contains(refusal("256\n", {.dtype = torch::kUInt8}), "'256' is out of the range of uint8"));
  EXPECT_TRUE(contains(refusal("-1\n", {.dtype = torch::kUInt8}), "'-1' is no whole number"));
  EXPECT_TRUE(contains(refusal("1.0\n", {.dtype = torch::kInt32}), "'1.0' is no whole number"));
  EXPECT_TRUE(
      contains(whole_error_of([&] { read("1\n", {.dtype = torch::kHalf}); }), "got float16"));
}

TEST_F(Csv, FloatsAreRoundedOnceAndKnowTheirRange) {
  // Halfway between two floats plus a little: through a double it would be rounded down.
  expect_values("1.00000005960464477540\n", torch::tensor({{1.00000011920928955078125}}));
  const at::Tensor special = read("inf,-inf,Infinity,NAN,nan\n").values;
  EXPECT_EQ(special.isnan().sum().item<int64_t>(), 2);
  EXPECT_EQ(special.isinf().sum().item<int64_t>(), 3);
  expect_values("1e-60,-1e-60,1e-45\n", torch::tensor({{0.0F, -0.0F, 1e-45F}}));
  expect_values("1e-400,4.9e-324\n",
                torch::tensor({{0.0, 4.94065645841246544e-324}}, torch::kDouble),
                {.dtype = torch::kDouble});
  EXPECT_TRUE(contains(refusal("1e39\n"), "'1e39' is out of the range of float32"));
  EXPECT_TRUE(contains(refusal("0\n-1e400\n", {.dtype = torch::kDouble}), "line 2: column 1"));
}

TEST_F(Csv, WhatIsNoNumberIsRefusedWithItsPlace) {
  for (const char* field : {"x", "1x", "0x10", "1_0", "--1", "+-1", "++1", "1 2", "nan(0)", "1e",
                            "e5", ".", "-", "1.2.3", "1,5\"", "\"1\"2", "'1'"}) {
    const std::string message = refusal(std::string("a,b\n\n1,2\n1,") + field + "\n", {});
    EXPECT_TRUE(contains(message, ", line 4")) << field;
  }
  EXPECT_EQ(refusal("a,b\n1,2\n1,x\n"), ", line 3: column 2 ('b'): 'x' is no number");
  EXPECT_TRUE(contains(refusal("1,\"2\"x\n"), "column 2: there is text after the closing quote"));
}

TEST_F(Csv, UnevenLinesAreRefused) {
  EXPECT_EQ(refusal("a,b\n1,2\n\n1,2,3\n"),
            ", line 4: expected 2 fields as in the first line, got 3");
  EXPECT_TRUE(contains(refusal("1,2\n3\n"), "got 1"));
  EXPECT_TRUE(contains(refusal("a,b\n1,2,3\n"), "got 3"));
}

TEST_F(Csv, UnclosedQuotesAreRefusedWhereTheyOpen) {
  EXPECT_EQ(refusal("1\n2\n\"3\n4\n5\n"), ", line 3: a quoted field is not closed");
  EXPECT_EQ(refusal("a,b\n1,\"2\"\"\n"), ", line 2: a quoted field is not closed");
}

TEST_F(Csv, LinesAreCountedInsideQuotes) {
  EXPECT_TRUE(contains(refusal("a,b\n\"x\n\n\",1\ny,z\n", {.columns = {"b"}}), "line 5: column 2"));
}

TEST_F(Csv, EmptyFilesAreRefused) {
  for (const char* content : {"", "\n\r\n  \n", "\xEF\xBB\xBF"}) {
    EXPECT_TRUE(contains(refusal(content), "is empty"));
  }
  EXPECT_TRUE(
      contains(whole_error_of([&] { read_csv(folder_.path("none")); }), "cannot be opened"));
}

TEST_F(Csv, LongFilesAndLongLinesAreReadWhole) {
  // Rows of changing length, so that a buffer ends at every place of a line; one line is longer than
  // any buffer is at first.
  const at::Tensor expected =
      torch::randint(-1'000'000'000, 1'000'000'000, {60'000, 3}, torch::kInt64);
  std::string content = "a,b,c\n";
  for (int64_t i = 0; i < expected.size(0); ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      content += std::to_string(expected[i][j].item<int64_t>()) + (j < 2 ? "," : "\n");
    }
    if (i == 30'000) content += std::string(1'000'000, ' ') + "\n";
  }
  expect_values(content, expected, {.dtype = torch::kInt64});
  const std::string packed = folder_.write_gzip("packed.csv.gz", content);
  EXPECT_TRUE(read_csv(packed, {.dtype = torch::kInt64}).values.equal(expected));
}

// Random damage gives an Error or a table, never a crash.
TEST_F(Csv, RandomDamageIsSurvived) {
  const uint32_t seed = random_seed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::string good = "one,\"t\"\"wo\"\n1,\"2\"\n 3.5 ,-4e-1\r\n\n\"5\",6\n";
  const std::string alphabet = ",\"\n\r 1e-.x\xEF";
  int accepted = 0;
  for (int round = 0; round < 2000; ++round) {
    std::string content = good;
    for (auto changes = random() % 4; changes > 0; --changes) {
      const std::size_t place = random() % content.size();
      const char byte = alphabet[random() % alphabet.size()];
      if (random() % 2 == 0) {
        content[place] = byte;
      } else {
        content.insert(place, 1, byte);
      }
    }
    try {
      const CsvTable table = read(content, {.missing = CsvMissing::nan});
      EXPECT_EQ(table.values.dim(), 2);
      ++accepted;
    } catch (const accelerant::Error&) {
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 2000);
}

}  // namespace
}  // namespace csv_test
