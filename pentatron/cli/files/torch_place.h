/// Which program `pentatron` becomes for verbs that need LibTorch, and where LibTorch is.
///
/// A build knows its torch. A program that was made elsewhere (a bundle, a wheel) has the version
/// that it needs in `share/pentatron/torch_version` ("2.11") and looks for that torch, in order: in
/// TORCH_ROOT, beside itself in the same site-packages, in VIRTUAL_ENV, and in the environment of
/// the python3 in PATH. No other program is started.
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

/// The program beside `pentatron` that runs verbs with LibTorch: the one for CUDA if there is one,
/// `gpu` is true and `torch`, if it is known, has CUDA.
std::filesystem::path torch_program(const std::filesystem::path& program_folder,
                                    const std::optional<std::filesystem::path>& torch, bool gpu);

} // namespace pentatron::cli
