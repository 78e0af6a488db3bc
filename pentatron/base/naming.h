/// Adds to errors about a value the key or option with which the user set it.
#pragma once

#include <string>
#include <string_view>

#include "pentatron/base/error.h"

namespace pentatron {

/// `message` about a `value` of which `name` is the key or option ("tokenizer.path=", "--input "):
/// "x does not exist" becomes "--input x does not exist". `remedy` is what to try where the message
/// says nothing.
std::string with_name(std::string_view name, std::string_view value, std::string_view message,
                      std::string_view remedy = {});

/// Does `work`, in whose errors the key or option of `value` is named, see with_name(). A
/// ConfigError names what it is about itself.
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
  } catch (const Error& error) { // of a file that cannot be written
    throw Error(with_name(name, value, error.what(), remedy));
  }
}

} // namespace pentatron
