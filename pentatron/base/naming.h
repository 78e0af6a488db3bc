/// Adds the key or option that set a value to errors about this value.
#pragma once

#include <string>
#include <string_view>

#include "pentatron/base/descriptors.h"
#include "pentatron/base/error.h"

namespace pentatron {

/// Adds `name`, the key or option of `value` ("tokenizer.path=", "--input "), to `message`: "x does
/// not exist" becomes "--input x does not exist". `remedy` is the suggestion to add if the message
/// has none.
std::string with_name(std::string_view name, std::string_view value, std::string_view message,
                      std::string_view remedy = {});

/// Calls `work` and adds the key or option of `value` to its errors, see with_name(). A ConfigError
/// is passed on unchanged because it already names its key, and OutOfDescriptors because no value
/// is its reason.
template <class F>
decltype(auto) naming(std::string_view name, std::string_view value, F&& work,
                      std::string_view remedy = {}) {
  try {
    return work();
  } catch (const DataError& error) {
    throw DataError(with_name(name, value, error.what(), remedy));
  } catch (const CheckpointError& error) {
    throw CheckpointError(with_name(name, value, error.what(), remedy));
  } catch (const ConfigError&) {
    throw;
  } catch (const OutOfDescriptors&) {
    throw;
  } catch (const Error& error) { // of a file that cannot be written
    throw Error(with_name(name, value, error.what(), remedy));
  }
}

} // namespace pentatron
