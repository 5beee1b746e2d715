# Completes hztune in fish. Only hztune knows its words: it says them, one a line, as "kind,word"
# and after a tab what the word does.
function __hztune_complete
    for line in (env COMP_WORDS=(commandline -cp) COMP_CWORD=(commandline -ct) \
            _HZTUNE_COMPLETE=fish_complete hztune 2>/dev/null)
        set -l part (string split -m 1 , -- $line)
        switch $part[1]
            case plain
                echo $part[2]
            case dir
                __fish_complete_directories $part[2]
            case file
                __fish_complete_path $part[2]
        end
    end
end

complete -c hztune --no-files -a '(__hztune_complete)'
