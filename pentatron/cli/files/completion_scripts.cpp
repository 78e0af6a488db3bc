#include "pentatron/cli/files/completion_scripts.h"

namespace pentatron::cli {

const char* const kBashCompletion = R"SH(
# Keys for the word $1 of the command $2: sections first, then the keys of a section.
_pentatron_offer_keys() {
  local named key equals== dot=. section seen=' '
  [[ $2 == 'config help' ]] && equals= dot=
  named=$(_pentatron_keys "$2")
  for key in ${named:-$_pentatron_all_keys}; do
    section=${key%%.*}
    if [[ -n $named || $1 == *.* || $key == "$section" ]]; then
      echo "$key$equals"
    elif [[ $seen != *" $section "* ]]; then
      echo "$section$dot"
      seen+="$section "
    fi
  done
}

# Offers `choices`, words or @files, for the beginning $1; $2 stands before it in the same word.
# Of an @list, "a,b,c", and of a list in @brackets, "[a,b,c]", the last item is completed.
_pentatron_offer() {
  local one begin=$1 items= before= files=
  case " $choices " in
  *' @list '*) begin=${1##*,} items=${1%"${1##*,}"} ;;
  *' @brackets '*) begin=${1##*[[,]} items=${1%"${1##*[[,]}"} items=${items:-[} ;;
  esac
  case " $choices " in
  *' @list '* | *' @brackets '*) compopt -o nospace 2>/dev/null ;; # more items or "]" follow
  esac
  # Where bash takes "=" for the end of a word, only what follows is replaced.
  [[ $COMP_WORDBREAKS == *=* ]] || before=$2
  before+=$items
  for one in $choices; do
    case $one in
    @files) files=1 ;;
    @*) ;;
    "$begin"*) [[ ,${items#[} == *",$one,"* ]] || COMPREPLY+=("$before$one") ;;
    esac
  done
  if [[ -n $files ]]; then
    local IFS=$'\n'
    ((${#COMPREPLY[@]})) || [[ -n $items ]] || compopt -o filenames 2>/dev/null
    COMPREPLY+=($(compgen -P "$before" -f -- "$begin"))
  fi
  if [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *[=.] ]]; then compopt -o nospace 2>/dev/null; fi
}

_pentatron() {
  local words=() word i n cur prev command= choices
  COMPREPLY=()
  # bash cuts words at "=": put them together again.
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]} n=${#words[@]}
    if ((n > 1)) && [[ $word == = || ${COMP_WORDS[i-1]} == = ]] &&
       ! [[ -z $word && ${COMP_LINE:COMP_POINT-1:1} == ' ' ]]; then
      words[n-1]+=$word
    else
      words+=("$word")
    fi
  done
  n=${#words[@]} cur=${words[n-1]} prev=${words[n-2]}
  for ((i = 1; i < n - 1; i++)); do
    [[ " $(_pentatron_commands "$command") " == *" ${words[i]} "* ]] || break
    command+=${command:+ }${words[i]}
  done
  if [[ $cur == -*=* ]]; then
    choices=$(_pentatron_choices "$command ${cur%%=*}")
    _pentatron_offer "${cur#*=}" "${cur%%=*}="
    return
  fi
  choices=$(_pentatron_choices "$command $prev")
  if [[ -n $choices ]]; then _pentatron_offer "$cur"; return; fi
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$(_pentatron_options "$command")" -- "$cur"))
    return
  fi
  choices=$(_pentatron_commands "$command")
  if [[ -n $choices ]]; then
    ((i < n - 1)) || _pentatron_offer "$cur" # else an unknown command stands before
    return
  fi
  choices=$(_pentatron_arguments "$command")
  if [[ " $choices " == *' @keys '* ]]; then
    if [[ $cur == *=* ]]; then
      choices=$(_pentatron_values "${cur%%=*}")
      _pentatron_offer "${cur#*=}" "${cur%%=*}="
      return
    fi
    choices+=" $(_pentatron_offer_keys "$cur" "$command")"
  fi
  _pentatron_offer "$cur"
}
complete -F _pentatron pentatron
)SH";

const char* const kZshCompletion = R"SH(
_pentatron_config() { # keys, and values after "=", for the command $1
  local -a offered
  if compset -P 1 '*='; then
    local found="$(_pentatron_values "${IPREFIX%=}")"
    if [[ $found == @files ]]; then
      _files
    elif [[ $found == *' @brackets' ]]; then
      local -a open
      compset -P '*[[,]' || open=(-P ${${compstate[quote]:+[}:-\\[}) # quoted, if the word is not
      compadd $open -q -S , -- ${=found% @brackets}
    else
      compadd -- ${=found}
    fi
    return
  fi
  offered=(${=$(_pentatron_keys "$1")})
  (( $#offered )) || offered=(${=_pentatron_all_keys})
  if [[ $1 == 'config help' ]]; then
    compadd -- $offered ${(u)offered%%.*}
  else
    compadd -S '=' -q -- $offered
  fi
}

_pentatron_choose() { # for the arguments of the command $1
  local one
  for one in ${=$(_pentatron_arguments "$1")}; do
    case $one in
    @files) _files ;;
    @keys) _pentatron_config "$1" ;;
    *) compadd -- $one ;;
    esac
  done
}

_pentatron() {
  local curcontext=$curcontext state line command=
  while (( CURRENT > 2 )) && [[ " $(_pentatron_commands "$command") " == *" ${words[2]} "* ]]; do
    command+=${command:+ }${words[2]}
    shift words
    (( CURRENT-- ))
  done
  local -a specs below
  _pentatron_specs "$command"
  if (( $#below )); then
    _arguments $specs '1:command:->commands'
    [[ $state == commands ]] && _describe command below
  else
    _arguments $specs "*:argument:{ _pentatron_choose ${(q)command} }"
  fi
}

if [[ $funcstack[1] == _pentatron ]]; then _pentatron "$@"; else compdef _pentatron pentatron; fi
)SH";

} // namespace pentatron::cli
