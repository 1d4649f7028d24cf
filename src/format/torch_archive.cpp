#include "format/torch_archive.h"

#include <algorithm>
#include <charconv>
#include <new>
#include <string_view>

#include "accelerant/core/error.h"
#include "format/little_endian.h"
#include "format/pickler.h"
#include "format/random_access_file.h"
#include "format/unpickler.h"
#include "format/zip_reader.h"
#include "format/zip_writer.h"

namespace accelerant::format {
namespace {

// Before version 1.6, torch.save wrote several pickles one after another, the first of them a magic
// number; before 0.1.10, a tar archive.
bool is_legacy(std::span<const std::byte> bytes) {
  using namespace std::string_view_literals;
  constexpr auto magic_number = "\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19."sv;
  constexpr std::size_t protocol_size = 2;
  constexpr std::size_t tar_magic_at = 257;
  const std::string_view text = as_text(bytes);
  return (text.starts_with('\x80') && text.size() > protocol_size &&
          text.substr(protocol_size).starts_with(magic_number)) ||
         (text.size() > tar_magic_at && text.substr(tar_magic_at).starts_with("ustar"));
}

bool is_torchscript(const ZipReader& archive) {
  return archive.find("constants.pkl") != nullptr || archive.has_folder("code/");
}

ArchiveKind kind_of(std::span<const std::byte> bytes, const std::string& name) {
  if (is_legacy(bytes)) return ArchiveKind::legacy;
  if (!ZipReader::looks_like_zip(bytes)) return ArchiveKind::not_an_archive;
  try {
    const ZipReader archive(bytes, name);
    if (is_torchscript(archive)) return ArchiveKind::torchscript_or_cpp;
    if (archive.find("data.pkl") != nullptr) return ArchiveKind::python_state;
  } catch (const Error&) {
    // Damaged, or a zip archive of something else.
  }
  return ArchiveKind::not_an_archive;
}

// Rejects other kinds of files, saying what to do about them.
void expect_zip(std::span<const std::byte> bytes, const std::string& name) {
  if (is_legacy(bytes)) {
    throw Error(ErrorDetails{
        .problem = name + " is in the format of torch before version 1.6",
        .expected = "a zip archive, as torch.save writes since 1.6",
        .hint = "convert it in Python: torch.save(torch.load(\"" + name + "\"), \"new.pt\")"});
  }
  if (!ZipReader::looks_like_zip(bytes)) {
    throw Error(ErrorDetails{.problem = name + " was not written by torch.save",
                             .expected = "a zip archive",
                             .got = bytes.empty() ? "an empty file" : "something else"});
  }
}

void expect_readable(const ZipReader& archive, const std::string& name, bool is_module) {
  if (!is_module && is_torchscript(archive)) {
    throw Error(ErrorDetails{
        .problem = name + " holds a TorchScript module or was written by C++'s torch::save",
        .expected = "a file written by Python's torch.save",
        .hint = "read it with read_module_archive, or with libtorch's torch::jit::load or "
                "torch::load"});
  }
  if (is_module && !is_torchscript(archive)) {
    throw Error(ErrorDetails{.problem = name + " was not written by C++'s torch::save",
                             .expected = "a record constants.pkl or a folder code",
                             .got = "an archive without them"});
  }
  archive.expect_stored(is_module ? "code/" : "");
  if (const ZipRecord* const order = archive.find("byteorder")) {
    archive.verify(*order, "byteorder");
    const std::string_view text = as_text(order->bytes);
    if (text != "little") {
      throw Error(ErrorDetails{.problem = name + " has the wrong byte order",
                               .expected = "little",
                               .got = std::string(text.substr(0, 16)),
                               .hint = "save it again on a little-endian machine"});
    }
  }
  const ZipRecord* version = archive.find(".data/version");
  if (version == nullptr) version = archive.find("version");
  if (version == nullptr) throw Error(name + " was not written by torch.save: it has no version");
  constexpr int newest = 10;
  const std::string_view text = as_text(version->bytes);
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  if (number < 1 || number > newest) {
    throw Error(ErrorDetails{.problem = name + " has an unknown version of torch's file format",
                             .expected = "1 to " + std::to_string(newest),
                             .got = std::string(text.substr(0, 16))});
  }
}

}  // namespace

ArchiveKind kind_of_archive(const std::string& path) {
  RandomAccessFile file(path);
  return kind_of(file.map(), path);
}

PlainValue read_torch_archive(const std::string& path, const TorchReadOptions& options) {
  const auto file = std::make_shared<RandomAccessFile>(path);
  return read_torch_archive(file->map(), file, path, options);
}

namespace {

PlainValue read_archive(std::span<const std::byte> bytes, const std::shared_ptr<const void>& owner,
                        const std::string& name, const TorchReadOptions& options, bool is_module) {
  expect_zip(bytes, name);
  // Shared with the storages, which compare their checksums later.
  const auto archive = std::make_shared<const ZipReader>(bytes, name);
  expect_readable(*archive, name, is_module);
  const ZipRecord* const pickle = archive->find("data.pkl");
  if (pickle == nullptr) {
    throw Error(ErrorDetails{.problem = name + " was not written by torch.save",
                             .expected = "a record data.pkl",
                             .got = "an archive without one"});
  }
  if (pickle->bytes.size() > options.max_pickle_bytes) {
    throw Error(
        ErrorDetails{.problem = name + " has a very large pickle",
                     .expected = "at most " + std::to_string(options.max_pickle_bytes) + " bytes",
                     .got = std::to_string(pickle->bytes.size()),
                     .hint = "raise TorchReadOptions::max_pickle_bytes if you trust it"});
  }
  if (options.verify_checksums) archive->verify(*pickle, "data.pkl");

  const auto find_storage = [&](const std::string& key, const std::string& location,
                                uint64_t size) -> std::shared_ptr<const PlainStorage> {
    const std::string record_name = "data/" + key;
    const ZipRecord* const record = archive->find(record_name);
    if (record == nullptr) throw Error(name + " is a damaged archive: it lacks " + record_name);
    if (record->bytes.size() != size) {
      throw Error(ErrorDetails{.problem = name + " is a damaged archive: its record " +
                                          record_name + " has the wrong size",
                               .expected = std::to_string(size) + " bytes",
                               .got = std::to_string(record->bytes.size())});
    }
    std::function<void()> check;
    if (options.verify_checksums) {
      check = [archive, record, record_name] { archive->verify(*record, record_name); };
    }
    return std::make_shared<const PlainStorage>(record->bytes, owner, key, location, check);
  };
  const UnpicklerOptions unpickling{.skip_numpy = options.skip_numpy, .modules = is_module};
  try {
    return Unpickler(pickle->bytes, name + ": data.pkl", find_storage, unpickling).load();
  } catch (const std::bad_alloc&) {
    throw Error(
        ErrorDetails{.problem = name + ": what its pickle describes does not fit into the memory",
                     .got = "a pickle of " + std::to_string(pickle->bytes.size()) + " bytes",
                     .hint = "TorchReadOptions::max_pickle_bytes limits what is read"});
  }
}

}  // namespace

PlainValue read_torch_archive(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                              const std::string& name, const TorchReadOptions& options) {
  return read_archive(bytes, owner, name, options, /*is_module=*/false);
}

PlainValue read_module_archive(const std::string& path, const TorchReadOptions& options) {
  const auto file = std::make_shared<RandomAccessFile>(path);
  return read_module_archive(file->map(), file, path, options);
}

PlainValue read_module_archive(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                               const std::string& name, const TorchReadOptions& options) {
  return read_archive(bytes, owner, name, options, /*is_module=*/true);
}

void write_torch_archive(const PlainValue& value, ByteSink& sink,
                         const TorchWriteOptions& options) {
  constexpr std::size_t longest_folder = 1024;
  if (options.folder.empty() || options.folder.size() > longest_folder ||
      options.folder.find('/') != std::string::npos) {
    throw Error(ErrorDetails{.problem = "the folder of a torch archive has an invalid name",
                             .expected = "a name without '/'",
                             .got = "'" + options.folder.substr(0, 64) + "'"});
  }
  Pickler pickler;
  const std::string pickle = pickler.dump(value);
  // The records of torch.save in their order, which torch.load relies on: storages by number.
  ZipWriter archive(sink, options.folder);
  archive.add("data.pkl", pickle);
  archive.add(".format_version", "1");
  archive.add(".storage_alignment", "64");
  archive.add("byteorder", "little");
  for (std::size_t i = 0; i < pickler.storages().size(); ++i) {
    const PlainStorage& storage = *pickler.storages()[i];
    archive.add("data/" + std::to_string(i), storage.size(),
                [&](ByteSink& record) { storage.write(record); });
  }
  archive.add("version", "3\n");
  archive.finish();
}

}  // namespace accelerant::format
