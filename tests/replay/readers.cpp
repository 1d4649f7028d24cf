// Reads a file with one of the readers of data/ and tells what was in it.
//
// Input: {"reader": "idx", "path": "..."}
//        {"reader": "csv", "path": "...", "delimiter": ",", "header": "automatic|yes|no",
//         "dtype": "float32", "columns": [names or places], "missing": "error|nan"}
//        {"reader": "text", "path": "...", "bytes": false}
// Output: {"dtype": ..., "shape": [...], "values": [...]}, with "names" for csv and "symbols" for
// text, or {"error": message}.
#include <accelerant/data/csv.h>
#include <accelerant/data/idx.h>
#include <accelerant/data/text.h>

#include "refusal.h"
#include "topics.h"
#include "values.h"

namespace replay {
namespace {

using nlohmann::json;
namespace data = accelerant::data;

json describe(const at::Tensor& tensor) {
  json values = json::array();
  if (tensor.is_floating_point()) {
    values = tensor_to(tensor);
  } else {  // not through double, which holds no 64 bits
    const at::Tensor flat = tensor.to(at::kLong).flatten();
    for (int64_t i = 0; i < flat.numel(); ++i) values.push_back(flat.data_ptr<int64_t>()[i]);
  }
  return {{"dtype", type_to(tensor.scalar_type())},
          {"shape", tensor.sizes().vec()},
          {"values", values}};
}

json read_csv(const std::string& path, const json& document) {
  data::CsvOptions options;
  options.delimiter = document.value("delimiter", ",").at(0);
  const std::string header = document.value("header", "automatic");
  options.header = header == "yes"  ? data::CsvHeader::yes
                   : header == "no" ? data::CsvHeader::no
                                    : data::CsvHeader::automatic;
  options.dtype = type_from(document.value("dtype", "float32"));
  if (document.value("missing", "error") == "nan") options.missing = data::CsvMissing::nan;
  for (const json& column : document.value("columns", json::array())) {
    if (column.is_string()) options.columns.emplace_back(column.get<std::string>());
    if (column.is_number()) options.columns.emplace_back(column.get<int64_t>());
  }
  const data::CsvTable table = data::read_csv(path, options);
  json result = describe(table.values);
  result["names"] = table.names;
  return result;
}

json read_text(const std::string& path, const json& document) {
  data::TextOptions options;
  if (document.value("bytes", false)) options.vocabulary = data::Vocabulary::bytes();
  const data::TextCorpus corpus = data::read_text(path, options);
  json result = describe(corpus.tokens);
  result["symbols"] = json::array();
  for (const char32_t symbol : corpus.vocabulary.symbols()) {
    result["symbols"].push_back(static_cast<int64_t>(symbol));
  }
  return result;
}

}  // namespace

json replay_readers(const json& document) {
  return result_or_error([&]() -> json {
    const std::string reader = document.at("reader").get<std::string>();
    const std::string path = document.at("path").get<std::string>();
    if (reader == "idx") return describe(data::read_idx(path));
    if (reader == "csv") return read_csv(path, document);
    if (reader == "text") return read_text(path, document);
    throw BadDocument("no reader " + reader);
  });
}

}  // namespace replay
