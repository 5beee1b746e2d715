# Counts words of a text that it makes up: strings, arrays and a hash of them. Argument: rounds.
use strict;
use warnings;
my ($state, %counts) = (1);
for (1 .. $ARGV[0]) {
    my @words;
    for (1 .. 200) {
        $state = ($state * 1103515245 + 12345) % 2147483648;
        push @words, ("word" . $state % 5000) x (1 + $state % 3);
    }
    $counts{uc $_}++ for split ' ', join ' ', @words;
    if (keys %counts > 4000) {
        for my $key (keys %counts) { delete $counts{$key} if $counts{$key} > 40 }
    }
}
my $sum = 0;
$sum += $_ for values %counts;
print scalar(keys %counts), " $sum\n";
