#include "accelerant/data/text.h"

#include <utility>

#include "accelerant/core/error.h"
#include "data/byte_source.h"

namespace accelerant::data {

TextCorpus text_corpus(std::string_view text, const TextOptions& options) {
  if (text.empty()) throw Error("the text is empty");
  Vocabulary vocabulary = options.vocabulary ? *options.vocabulary : Vocabulary::characters(text);
  at::Tensor tokens = vocabulary.encode(text, {.replacement = options.replacement});
  return {.tokens = std::move(tokens), .vocabulary = std::move(vocabulary)};
}

TextCorpus read_text(const std::string& path, const TextOptions& options) {
  const std::string text = read_whole_file(path);
  try {
    return text_corpus(text, options);
  } catch (const Error& error) {
    throw Error(path + ": " + error.what());
  }
}

}  // namespace accelerant::data
