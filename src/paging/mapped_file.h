// Units whose bytes are in safetensors files that are mapped into memory. On the CPU operators use
// the mapping itself; otherwise bytes are read from the file, to an accelerator through small
// pinned buffers. Files are never written to: a unit that changes moves to host memory.
//
// If a file is truncated, or its disk fails, reading throws Error. Only where operators use the
// mapping, the system ends the process (SIGBUS).
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "accelerant/format/safetensors.h"
#include "paging/source.h"

namespace accelerant::paging {

// A tensor in a file. The file must be opened with FileAccess::map.
struct FileTensor {
  std::shared_ptr<const format::SafetensorsFile> file = {};
  std::string name = {};  // in the file
};

using FileTensors = std::map<std::string, FileTensor>;  // by the model's names

// The files of a model, shared by the sources of all its units.
class ModelFiles {
 public:
  // `tensors`: by the names of parameters, as in UnitPart::names. Of tied parameters one suffices.
  explicit ModelFiles(FileTensors tensors);
  ~ModelFiles();

  // The tensor that holds a part of a unit. Throws Error if there is none, or if it has another
  // type or shape than the parameter.
  const FileTensor& tensor_of(const UnitLayout& layout, const UnitPart& part) const;

  // What is read into which bytes, as many as the tensor has.
  struct Read {
    const FileTensor* tensor;
    at::Tensor target;
  };

  // The targets are on one device; on an accelerator, they are filled on its current stream.
  void read(const std::vector<Read>& reads, c10::Device device);

 private:
  class Staging;
  struct DeviceOrder {
    bool operator()(c10::Device a, c10::Device b) const { return a.index() < b.index(); }
  };

  FileTensors tensors_;
  std::mutex mutex_;
  std::map<c10::Device, std::unique_ptr<Staging>, DeviceOrder> staging_;  // made when needed
};

class MappedFile final : public Source {
 public:
  explicit MappedFile(std::shared_ptr<ModelFiles> files);

  std::string describe() const override;
  void check(const UnitLayout& layout) const override;
  std::optional<LentMemory> lend(const UnitLayout& layout) override;
  void fetch(const UnitLayout& layout, const at::Tensor& block) override;

 private:
  std::shared_ptr<ModelFiles> files_;
};

}  // namespace accelerant::paging
