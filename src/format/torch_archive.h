// Reads and writes the files of Python's torch.save: pytorch_model.bin, optimizer.bin,
// scheduler.bin, scaler.pt and so on. libtorch itself cannot read a Python state dict, and
// torch.load(weights_only=True) rejects what libtorch writes.
//
//   const PlainValue state = read_torch_archive("pytorch_model.bin");
//   for (const PlainItem& item : state.as_dict().items) {
//     const PlainTensor& weight = item.value.as_tensor();
//     use(item.key.as_string(), weight.shape, weight.storage->bytes());
//   }
//
//   PlainDict scaler;
//   scaler.set("scale", 65536.0);
//   write_torch_archive(std::move(scaler), sink);  // torch.load(weights_only=True) reads it
//
// Such a file is a zip archive that holds the storages of the tensors and a pickle, which is a
// program for a small machine. Reading is safe for files of unknown origin. The pickle can only
// build the plain data of plain_value.h. Names of functions and classes are compared with a fixed
// list, and nothing is ever called. Every length is compared with the file before it is used, and
// memory stays in proportion to the file. Anything not on the list is an Error that names it.
//
// Storages are views of the mapped file, and each keeps the file open while it is in use. Do not
// modify the file in place meanwhile; renaming another file over it is fine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "accelerant/core/detail/byte_sink.h"
#include "format/plain_value.h"

namespace accelerant::format {

enum class ArchiveKind {
  python_state,        // torch.save of torch 1.6 or newer: use read_torch_archive
  torchscript_or_cpp,  // torch.jit.save, or C++'s torch::save: use read_module_archive
  legacy,              // torch.save of torch before 1.6: save it again
  not_an_archive,      // anything else
};

// Detects the kind of a file by its first bytes and its list of records. Throws Error only if the
// file cannot be read.
ArchiveKind kind_of_archive(const std::string& path);

struct TorchReadOptions {
  // Compare the checksums of the pickle and, on first access, of each storage. Records saved
  // without a checksum (torch.serialization.set_crc32_options(False)) are not compared. Default:
  // true. torch.load itself never compares them.
  bool verify_checksums = true;

  // The largest pickle to read, in bytes. A malicious pickle can take a few hundred times its size
  // in memory. A tensor needs about 150 bytes of pickle. Default: 256 MiB.
  uint64_t max_pickle_bytes = uint64_t{256} << 20;

  // Turn numpy arrays, numbers and types into None, so that the rest of the file can be read:
  // Accelerate's random_states_0.pkl contains the state of numpy's generator. Default: false, which
  // rejects them like every other class that is not on the list.
  bool skip_numpy = false;
};

// The content of the file. Integers beyond 64 bits, sparse and quantised tensors, objects that
// contain themselves, and nesting deeper than 1000 are rejected.
PlainValue read_torch_archive(const std::string& path, const TorchReadOptions& options = {});

// The same for an archive in memory. `owner` keeps the bytes alive; each storage holds it. If it is
// empty, the caller must keep them alive. Messages call the file `name`.
PlainValue read_torch_archive(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                              const std::string& name, const TorchReadOptions& options = {});

// The content of a file written by C++'s torch::save or by torch.jit.save: the attributes of the
// module as nested dicts, including parameters and buffers. The module's code is neither read nor
// run. Objects that save themselves with their own code (__getstate__) are rejected.
PlainValue read_module_archive(const std::string& path, const TorchReadOptions& options = {});
PlainValue read_module_archive(std::span<const std::byte> bytes, std::shared_ptr<const void> owner,
                               const std::string& name, const TorchReadOptions& options = {});

struct TorchWriteOptions {
  // The folder of the records inside the archive, without '/'. torch.save uses the file's name
  // without its suffix; readers accept any. Default: "archive".
  std::string folder = "archive";
};

// Writes `value` so that torch.load(weights_only=True) of torch 2.0 and newer can read it, also
// with mmap=True. Each storage is written once, however many tensors share it. The same value gives
// the same bytes. Throws Error, before writing anything, for a value that cannot be written: a
// tensor that reaches beyond its storage, a string that is not UTF-8, a key that Python cannot
// hash. A damaged storage is only noticed when its turn comes.
void write_torch_archive(const PlainValue& value, ByteSink& sink,
                         const TorchWriteOptions& options = {});

}  // namespace accelerant::format
