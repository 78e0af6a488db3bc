// The compiled half of fmt. The torch wheel ships fmt's headers without its library, and
// header-only fmt would be compiled again, for about 3 s, in every file that formats text.
#include <fmt/format-inl.h>

FMT_BEGIN_NAMESPACE
template FMT_API auto locale_ref::get<std::locale>() const -> std::locale;
namespace detail {
template FMT_API auto dragonbox::to_decimal(float x) noexcept -> dragonbox::decimal_fp<float>;
template FMT_API auto dragonbox::to_decimal(double x) noexcept -> dragonbox::decimal_fp<double>;
template FMT_API auto thousands_sep_impl(locale_ref) -> thousands_sep_result<char>;
template FMT_API auto decimal_point_impl(locale_ref) -> char;
} // namespace detail
FMT_END_NAMESPACE
