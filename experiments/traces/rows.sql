-- 300,000 rows made by one recursive query: some eight million calls to the allocator a second.
create table numbers (number integer primary key, name text, share real);
with recursive row (number) as (select 1 union all select number + 1 from row where number < 300000)
insert into numbers select number, 'name ' || number, number / 7.0 from row;
select count(*), sum(share), max(name) from numbers;
