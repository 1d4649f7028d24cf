// How a rank tells its launcher that it is saving its state because it was asked to stop, and needs longer
// than ranks that only end: by a file that the launcher names.
#pragma once

namespace accelerant {

inline constexpr const char* kSavingFileVariable = "ACCELERANT_SAVING_FILE";

// Makes the file. Does nothing where there is no launcher that names one, or where it cannot be made: the
// launcher's usual patience may still be enough.
void mark_saving() noexcept;

}  // namespace accelerant
