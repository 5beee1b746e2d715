#!/bin/sh
# Makes the inputs of six programs in the folder $1, and compares hz and its seven peers on each for
# two minutes. Nobody had looked at these programs before. Wants gawk, graphviz, xsltproc, tcl, git
# and gdb.
set -eu

repository=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
library=$(hztune paths --lib)
mkdir -p "$1"
cd "$1"
cat > words.awk <<'END'
BEGIN { for (i = 0; i < 500000; i++) { k = i * 7919 % 100003; a[k] = a[k] "x" i }; for (k in a) n += length(a[k]); print n }
END
cat > lists.tcl <<'END'
set n 0
for {set i 0} {$i < 200000} {incr i} { dict lappend d [expr {$i*7919 % 50021}] "value $i" }
foreach k [lsort -integer [dict keys $d]] { incr n [string length [join [dict get $d $k] ,]] }
puts $n
END
cat > sort.xsl <<'END'
<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform"><xsl:template match="/r"><o>
<xsl:for-each select="i"><xsl:sort select="n"/><e><xsl:value-of select="concat(n,@k)"/></e></xsl:for-each>
</o></xsl:template></xsl:stylesheet>
END
python3 - <<'END'
import random

random.seed(1)
with open("graph.dot", "w") as file:
    file.write("digraph g {\n")
    for i in range(300):
        file.write(f"n{i} -> n{random.randrange(300)};\n")
    for i in range(120):
        file.write(f"n{random.randrange(300)} -> n{random.randrange(300)};\n")
    file.write("}\n")
with open("items.xml", "w") as file:
    file.write("<r>")
    for i in range(60000):
        name, key = random.randrange(5000), random.randrange(10**6)
        file.write(f'<i k="{key}"><n>name {name}</n><v>{i}</v></i>')
    file.write("</r>")
END

beside() {
    hztune compare hz glibc jemalloc mimalloc tcmalloc google_tcmalloc rpmalloc snmalloc \
        --budget 120s --pairs 12 -- "$@"
}
beside gawk -f words.awk
beside dot -Tsvg graph.dot
beside xsltproc sort.xsl items.xml
beside tclsh lists.tcl
beside git -C "$repository" log -p -150
beside gdb -nx -batch -ex 'info types' -ex 'info functions' "$library"
