// Texts as tensors of tokens, for language models of characters or bytes.
//
//   TextCorpus corpus = read_text("book.txt");                  // characters
//   TextCorpus raw = read_text("book.txt", {.vocabulary = Vocabulary::bytes()});
//   std::string begin = corpus.vocabulary.decode(corpus.tokens.slice(0, 0, 100));
//
// text_windows.h makes training samples from it. The tensor owns its memory.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <string_view>

#include "accelerant/data/vocabulary.h"

namespace accelerant::data {

struct TextOptions {
  // What the text is encoded with: for a validation text the training text's vocabulary, or
  // Vocabulary::bytes(). Default: the characters of the text itself.
  std::optional<Vocabulary> vocabulary = {};

  // The symbol that takes the place of characters the given vocabulary does not have. Default: such
  // a character is an Error.
  std::optional<char32_t> replacement = {};
};

struct TextCorpus {
  at::Tensor tokens;      // [n] on the CPU, of the vocabulary's token_type(): uint8, int16 or int32
  Vocabulary vocabulary;  // what the tokens mean
};

// Reads a plain or gzip text file as it is: newlines and a byte order mark are not changed. Throws
// Error that names the file, and for characters the byte offset, when it cannot be read, is empty, is
// no valid UTF-8 or has a character that the vocabulary lacks.
TextCorpus read_text(const std::string& path, const TextOptions& options = {});

// The same from a text in memory.
TextCorpus text_corpus(std::string_view text, const TextOptions& options = {});

}  // namespace accelerant::data
