<?php
// Counts words of a text that it makes up: strings, arrays and a table of them. Argument: rounds.
$state = 1;
$counts = [];
for ($round = 0; $round < (int)$argv[1]; $round++) {
    $words = [];
    for ($i = 0; $i < 200; $i++) {
        $state = ($state * 1103515245 + 12345) % 2147483648;
        $words[] = str_repeat("word" . $state % 5000, 1 + $state % 3);
    }
    foreach (explode(" ", implode(" ", $words)) as $word) {
        $key = strtoupper($word);
        $counts[$key] = ($counts[$key] ?? 0) + 1;
    }
    if (count($counts) > 4000) {
        $counts = array_filter($counts, fn ($count) => $count <= 40);
    }
}
echo count($counts), " ", array_sum($counts), "\n";
