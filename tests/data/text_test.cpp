#include <accelerant/data/text.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "support/expect_error.h"
#include "support/temp_folder.h"

namespace text_test {
namespace {

using accelerant::data::read_text;
using accelerant::data::text_corpus;
using accelerant::data::TextCorpus;
using accelerant::data::Vocabulary;

TEST(Vocabulary, CharactersAreDistinctAndSorted) {
  const Vocabulary vocabulary = Vocabulary::characters(
      "b\xC3\xA9"
      "a\nab\xF0\x9F\x98\x80");
  EXPECT_EQ(vocabulary.symbols(), (std::vector<char32_t>{'\n', 'a', 'b', 0xE9, 0x1F600}));
  EXPECT_EQ(vocabulary.size(), 5);
  EXPECT_FALSE(vocabulary.is_bytes());
  EXPECT_EQ(vocabulary.token(0xE9), 3);
  EXPECT_EQ(vocabulary.token('c'), std::nullopt);
  EXPECT_EQ(vocabulary.token(0x10FFFF), std::nullopt);
}

TEST(Vocabulary, EncodesAndDecodes) {
  const Vocabulary vocabulary = Vocabulary::characters("ab\xC3\xA9");
  const at::Tensor tokens = vocabulary.encode(
      "\xC3\xA9"
      "ba");
  EXPECT_TRUE(tokens.equal(torch::tensor({2, 1, 0}, torch::kUInt8)));
  EXPECT_EQ(vocabulary.decode(tokens),
            "\xC3\xA9"
            "ba");
  EXPECT_EQ(vocabulary.decode(torch::tensor({{0, 1}, {2, 0}}).t()),
            "a\xC3\xA9"
            "ba");
  EXPECT_EQ(vocabulary.encode("").numel(), 0);
  EXPECT_EQ(vocabulary.decode(vocabulary.encode("")), "");
}

TEST(Vocabulary, TokensHaveTheNarrowestType) {
  std::string text;
  const auto add = [&](unsigned first, unsigned last) {  // all have three bytes
    for (unsigned c = first; c < last; ++c) {
      text += static_cast<char>(0xE0U | c >> 12);
      text += static_cast<char>(0x80U | (c >> 6 & 0x3FU));
      text += static_cast<char>(0x80U | (c & 0x3FU));
    }
  };
  add(0x1000, 0x1100);
  EXPECT_EQ(Vocabulary::characters(text).token_type(), torch::kUInt8);
  add(0x1100, 0x1101);
  EXPECT_EQ(Vocabulary::characters(text).token_type(), torch::kInt16);
  add(0x1101, 0x9000);
  ASSERT_EQ(Vocabulary::characters(text).size(), 0x8000);
  EXPECT_EQ(Vocabulary::characters(text).token_type(), torch::kInt16);
  add(0x9000, 0x9001);
  const Vocabulary large = Vocabulary::characters(text);
  EXPECT_EQ(large.token_type(), torch::kInt32);
  EXPECT_TRUE(large.encode(text).equal(torch::arange(0x8001, torch::kInt32)));
  EXPECT_EQ(large.decode(large.encode(text)), text);
}

TEST(Vocabulary, BytesTakeAnything) {
  const Vocabulary vocabulary = Vocabulary::bytes();
  std::string all;
  for (int c = 255; c >= 0; --c) all += static_cast<char>(c);
  EXPECT_TRUE(vocabulary.encode(all).equal(torch::arange(255, -1, -1, torch::kUInt8)));
  EXPECT_EQ(vocabulary.decode(vocabulary.encode(all)), all);
  EXPECT_EQ(vocabulary.size(), 256);
  EXPECT_TRUE(vocabulary.is_bytes());
}

TEST(Vocabulary, InvalidUtf8IsRefusedWithItsPlace) {
  const std::vector<std::string> invalid = {
      "\x80",              // a continuation byte alone
      "\xC3",              // one too few
      "\xC3(",             // no continuation byte
      "\xE2\x82",          // one too few of three
      "\xE2\x28\xA1",      // the second is none
      "\xF0\x9F\x98",      // one too few of four
      "\xC0\xAF",          // '/' in two bytes
      "\xE0\x80\xAF",      // in three
      "\xF0\x80\x80\xAF",  // in four
      "\xED\xA0\x80",      // a surrogate
      "\xF4\x90\x80\x80",  // past U+10FFFF
      "\xF8\x88\x80\x80\x80",
      "\xFE",
      "\xFF",
  };
  for (const std::string& bytes : invalid) {
    const std::string message =
        whole_error_of([&] { Vocabulary::characters("a\xC3\xA9" + bytes); });
    EXPECT_TRUE(contains(message, "no valid UTF-8 at byte 3: got 0x"));
    EXPECT_TRUE(contains(message, "Vocabulary::bytes()"));
    EXPECT_TRUE(contains(whole_error_of([&] { Vocabulary::characters("a").encode("a" + bytes); }),
                         "at byte 1"));
  }
}

TEST(Vocabulary, UnknownCharactersAreRefusedOrReplaced) {
  const Vocabulary vocabulary = Vocabulary::characters("abc?");
  const std::string text = "ab\xC3\xA9z";
  const std::string message = whole_error_of([&] { vocabulary.encode(text); });
  EXPECT_TRUE(
      contains(message, "U+00E9 ('\xC3\xA9') at byte 2 is not in the vocabulary of 4 symbols"));
  EXPECT_EQ(vocabulary.decode(vocabulary.encode(text, {.replacement = U'?'})), "ab??");
  EXPECT_TRUE(contains(whole_error_of([&] { vocabulary.encode(text, {.replacement = U'!'}); }),
                       "not in the vocabulary itself: expected one of its symbols, got U+0021"));
}

TEST(Vocabulary, BadTokensAreRefused) {
  const Vocabulary vocabulary = Vocabulary::characters("abc");
  EXPECT_TRUE(contains(whole_error_of([&] {
                         vocabulary.decode(torch::tensor({0, 3}));
                       }),
                       "token 1 cannot be decoded: expected 0 to 2, got 3"));
  EXPECT_TRUE(contains(whole_error_of([&] { vocabulary.decode(torch::tensor({-1})); }), "got -1"));
  EXPECT_TRUE(contains(whole_error_of([&] { vocabulary.decode(torch::tensor({0.5})); }),
                       "expected a tensor of integers"));
}

TEST(Vocabulary, EqualOnesAreEqual) {
  EXPECT_EQ(Vocabulary::characters("abc"), Vocabulary::characters("cabbage"
                                                                  "c")
                                               .characters("cba"));
  EXPECT_FALSE(Vocabulary::characters("abc") == Vocabulary::characters("abd"));
}

TEST(Text, CorpusFromMemoryAndFromFiles) {
  const TempFolder folder;
  const std::string text = "one\r\ntwo\n";
  for (const TextCorpus& corpus : {text_corpus(text), read_text(folder.write("text", text)),
                                   read_text(folder.write_gzip("text.gz", text))}) {
    EXPECT_EQ(corpus.vocabulary, Vocabulary::characters(text));
    EXPECT_EQ(corpus.vocabulary.decode(corpus.tokens), text);
  }
  const TextCorpus bytes = read_text(folder.path("text.gz"), {.vocabulary = Vocabulary::bytes()});
  EXPECT_EQ(bytes.tokens[0].item<int64_t>(), 'o');
  EXPECT_EQ(bytes.tokens.numel(), 9);
}

TEST(Text, LongFilesAreReadWhole) {
  const TempFolder folder;
  std::string text;
  for (int i = 0; i < 300'000; ++i) text += std::to_string(i) + ' ';
  for (const std::string& path : {folder.write("text", text), folder.write_gzip("text.gz", text)}) {
    const TextCorpus corpus = read_text(path);
    EXPECT_TRUE(corpus.vocabulary.decode(corpus.tokens) == text);
  }
}

TEST(Text, AnotherTextTakesTheSameVocabulary) {
  const TextCorpus train = text_corpus("abcd_");
  const TextCorpus test =
      text_corpus("dazed", {.vocabulary = train.vocabulary, .replacement = U'_'});
  EXPECT_EQ(test.vocabulary.decode(test.tokens), "da__d");
  EXPECT_TRUE(contains(whole_error_of([&] { text_corpus("dz", {.vocabulary = train.vocabulary}); }),
                       "U+007A"));
}

TEST(Text, ErrorsNameTheFile) {
  const TempFolder folder;
  const std::string bad = folder.write("bad", "a\xFF");
  EXPECT_TRUE(
      contains(whole_error_of([&] { read_text(bad); }), bad + ": the text is no valid UTF-8"));
  const std::string empty = folder.write("empty", "");
  EXPECT_EQ(whole_error_of([&] { read_text(empty); }), empty + ": the text is empty");
  const std::string missing = folder.path("missing");
  EXPECT_TRUE(
      contains(whole_error_of([&] { read_text(missing); }), missing + ": cannot be opened"));
}

}  // namespace
}  // namespace text_test
