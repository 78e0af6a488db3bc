#include "pentatron/data/tokenizer/chat/macro_scope.h"

#include <algorithm>
#include <utility>

#include "pentatron/base/error.h"
#include "pentatron/data/tokenizer/chat/operators.h"

namespace pentatron::data::tokenizer::chat {

Scope macro_scope(const Node& macro, const Arguments& given) {
  Scope scope;
  List more;
  Dict named;
  const auto has = [&](const std::string& name) {
    return std::ranges::find(macro.names, name) != macro.names.end();
  };
  for (size_t i = 0; i < given.values.size(); ++i) {
    if (i < macro.names.size())
      scope[macro.names[i]] = given.values[i];
    else
      more.push_back(given.values[i]);
  }
  for (const auto& [name, value] : given.named) {
    const bool wanted = has(name) || (name == kCaller && macro.extras.contains(kCaller));
    if (!wanted || !scope.try_emplace(name, value).second) named.emplace_back(name, value);
  }
  if (!more.empty() && !macro.extras.contains("varargs"))
    raise<DataError>("the macro '{}' is given too many arguments", macro.text);
  if (!named.empty() && !macro.extras.contains("kwargs"))
    raise<DataError>("the macro '{}' does not have the argument '{}'", macro.text,
                     to_text(named[0].first));
  // A parameter of such a name has its default.
  const auto is_extra = [&](const char* name) { return macro.extras.contains(name) && !has(name); };
  if (is_extra("varargs")) scope.try_emplace("varargs", make_tuple(std::move(more)));
  if (is_extra("kwargs")) scope.try_emplace("kwargs", make_dict(std::move(named)));
  if (is_extra(kCaller)) scope.try_emplace(kCaller, Undefined{kCaller});
  return scope;
}

} // namespace pentatron::data::tokenizer::chat
