#include "pentatron/comm/failure.h"

#include "pentatron/base/error.h"

#include <c10/util/Exception.h>

namespace pentatron::comm {

Failure Failure::of(const std::exception_ptr& reason) {
  try {
    std::rethrow_exception(reason);
  } catch (const ConfigError& error) {
    return {FailureKind::kConfig, error.what()};
  } catch (const ShapeError& error) {
    return {FailureKind::kShape, error.what()};
  } catch (const CommError& error) {
    return {FailureKind::kComm, error.what()};
  } catch (const DataError& error) {
    return {FailureKind::kData, error.what()};
  } catch (const CheckpointError& error) {
    return {FailureKind::kCheckpoint, error.what()};
  } catch (const c10::Error& error) {
    return {FailureKind::kError, error.what_without_backtrace()};
  } catch (const std::exception& error) {
    return {FailureKind::kError, error.what()};
  } catch (...) {
    return {FailureKind::kError, "an exception of unknown type"};
  }
}

void Failure::raise(const std::string& prefix) const {
  switch (kind) {
  case FailureKind::kConfig:
    throw ConfigError(prefix + sentence);
  case FailureKind::kShape:
    throw ShapeError(prefix + sentence);
  case FailureKind::kComm:
    throw CommError(prefix + sentence);
  case FailureKind::kData:
    throw DataError(prefix + sentence);
  case FailureKind::kCheckpoint:
    throw CheckpointError(prefix + sentence);
  case FailureKind::kError:
    break;
  }
  throw Error(prefix + sentence);
}

} // namespace pentatron::comm
