/// Finds LibTorch and the program that `pentatron` executes for commands that need LibTorch.
///
/// A local build uses the torch that it was built with. A bundle or a wheel stores the version that
/// it needs in `share/pentatron/torch_version` ("2.11") and searches for that version in this
/// order: TORCH_ROOT, the site-packages folder that contains the program, VIRTUAL_ENV, and the
/// environment of the python3 in PATH. The search does not start other programs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace pentatron::cli {

/// Whether a GPU of NVIDIA answers and CUDA_VISIBLE_DEVICES does not hide all of them.
bool gpu_visible();

/// The torch that programs in `program_folder` need and have to look for; empty for a build, which
/// knows its own. Throws Error if the torch that is found is of another version, or none is found.
std::optional<std::filesystem::path> torch_to_load(const std::filesystem::path& program_folder);

/// The folders with the shared libraries of a torch and of the packages that it needs, joined by
/// colons, before what LD_LIBRARY_PATH has.
std::string library_path(const std::filesystem::path& torch);

/// Returns the program next to `pentatron` that runs commands with LibTorch: the CUDA program if it
/// exists, `gpu` is true and `torch`, if known, supports CUDA. Throws Error if it does, but for
/// another CUDA than share/pentatron/cuda_version ("13") has.
std::filesystem::path torch_program(const std::filesystem::path& program_folder,
                                    const std::optional<std::filesystem::path>& torch, bool gpu);

} // namespace pentatron::cli
