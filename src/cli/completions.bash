_clap_complete_NAME() {
    # Bash also splits words at = and : (COMP_WORDBREAKS), as gpu:0 and train.epochs=1: what no blank separates is
    # joined again. `begun` is the part of the last word before $2, which alone bash replaces.
    local head=${COMP_LINE:0:COMP_POINT} begun= words=() word rest i
    for ((i = 0; i <= COMP_CWORD; i++)); do
        word=${COMP_WORDS[i]}
        rest=${head#"${head%%[![:space:]]*}"}
        if ((i == 0)) || [[ $rest != "$head" ]]; then
            words+=("") begun=
        fi
        if ((i == COMP_CWORD)); then
            begun+=${rest%"$2"}
            begun=${begun//[\"\']/}
            words[${#words[@]} - 1]=$begun$2
        else
            begun+=$word
            words[${#words[@]} - 1]+=$word
            head=${rest#"$word"}
        fi
    done
    local IFS=$'\013' space=true
    if compopt +o nospace 2> /dev/null; then
        space=false
    fi
    COMPREPLY=( $( \
        _CLAP_IFS="$IFS" \
        _CLAP_COMPLETE_INDEX="$((${#words[@]} - 1))" \
        _CLAP_COMPLETE_COMP_TYPE="$COMP_TYPE" \
        _CLAP_COMPLETE_SPACE="$space" \
        VARIABLE="bash" \
        COMPLETER -- "${words[@]}" \
    ) )
    if [[ $? != 0 ]]; then
        unset COMPREPLY
        return
    fi
    if [[ $space == false && ${COMPREPLY-} =~ [=/:]$ ]]; then
        compopt -o nospace
    fi
    COMPREPLY=("${COMPREPLY[@]#"$begun"}")
}
if [[ ${BASH_VERSINFO[0]} -eq 4 && ${BASH_VERSINFO[1]} -ge 4 || ${BASH_VERSINFO[0]} -gt 4 ]]; then
    complete -o nospace -o bashdefault -o nosort -F _clap_complete_NAME BIN
else
    complete -o nospace -o bashdefault -F _clap_complete_NAME BIN
fi
