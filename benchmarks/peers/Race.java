import java.io.*;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.*;
import org.apache.flink.api.common.typeinfo.*;
import org.apache.flink.api.connector.sink2.*;
import org.apache.flink.api.java.tuple.*;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.connector.file.src.*;
import org.apache.flink.connector.file.src.assigners.*;
import org.apache.flink.connector.file.src.reader.*;
import org.apache.flink.core.fs.*;
import org.apache.flink.streaming.api.datastream.*;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.windowing.ProcessWindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.*;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.util.Collector;
import org.apache.flink.util.ParameterTool;

/** One run of a workload on Flink; flink.py says how it is set up. Prints RESULT, events, nanoseconds, rows. */
public final class Race {
    static final int PARALLELISM = 2;
    static final int RECORD_BYTES = 32;

    // Flink's clock has milliseconds and the input microseconds: what Flink takes for a millisecond is a microsecond
    // here, so that all bounds are exact.
    static final long TICKS_PER_SECOND = 1_000_000;

    // A local environment runs all tasks in this JVM.
    static final AtomicLong EMITTED = new AtomicLong();
    static final AtomicLong ROWS = new AtomicLong();
    static volatile long warmUpEvents;
    static volatile long timedFromNanos;
    static volatile long timedFromEvents;

    public static void main(String[] arguments) throws Exception {
        ParameterTool options = ParameterTool.fromArgs(arguments);
        File[] files = new File(options.getRequired("data")).listFiles((directory, name) -> name.endsWith(".bin"));
        long events = Arrays.stream(files).mapToLong(File::length).sum() / RECORD_BYTES;
        warmUpEvents = events / 4;

        WatermarkStrategy<Tuple3<Long, Long, Long>> watermarks =
                WatermarkStrategy.<Tuple3<Long, Long, Long>>forBoundedOutOfOrderness(ticks(options, "delay"))
                        .withTimestampAssigner((bid, previous) -> bid.f0);
        WindowedStream<Tuple2<Long, Long>, Long, TimeWindow> windows =
                StreamExecutionEnvironment.createLocalEnvironment(PARALLELISM, settings(options))
                        .fromSource(source(files, options), watermarks, "bids")
                        .map(new Emit())
                        .keyBy(bid -> bid.f0, Types.LONG)
                        .window(windows(options));
        DataStream<Tuple4<Long, Long, Long, Double>> results =
                options.getRequired("function").equals("count")
                        ? windows.aggregate(new Count(), new Counted())
                        : windows.process(new Median());
        results.sinkTo(new Results(options.get("output")));

        results.getExecutionEnvironment().execute("race");
        long end = System.nanoTime();
        if (timedFromEvents == 0) {
            throw new IllegalStateException("too few events to time: " + events);
        }
        System.out.println("RESULT " + (events - timedFromEvents) + " " + (end - timedFromNanos) + " " + ROWS.get());
    }

    static Configuration settings(ParameterTool options) {
        boolean rocksdb = options.getRequired("state").equals("rocksdb");
        String directory = options.getRequired("directory");
        Configuration settings = new Configuration();
        settings.setString("state.backend.type", rocksdb ? "rocksdb" : "hashmap");
        settings.setString("state.backend.rocksdb.localdir", directory + "/rocksdb");
        settings.setString("io.tmp.dirs", directory);
        settings.setString("taskmanager.memory.managed.size", "2g");
        settings.setString("taskmanager.numberOfTaskSlots", String.valueOf(PARALLELISM));
        settings.setString("pipeline.object-reuse", "true");
        settings.setString("pipeline.generic-types", "false"); // fails where Kryo would be needed
        settings.setString("restart-strategy.type", "none");
        if (options.getInt("checkpoint-seconds") > 0) {
            settings.setString("execution.checkpointing.interval", options.get("checkpoint-seconds") + "s");
            settings.setString("execution.checkpointing.dir", "file://" + directory + "/checkpoints");
            settings.setString("execution.checkpointing.incremental", String.valueOf(rocksdb));
            // Otherwise a job that has done its work waits for the next checkpoint, up to a whole interval.
            settings.setString("execution.checkpointing.checkpoints-after-tasks-finish", "false");
        }
        return settings;
    }

    static FileSource<Tuple3<Long, Long, Long>> source(File[] files, ParameterTool options) {
        Path[] paths = Arrays.stream(files).map(Path::fromLocalFile).toArray(Path[]::new);
        return FileSource.forRecordStreamFormat(new Bids(options.getRequired("key").equals("auction") ? 8 : 16), paths)
                .setSplitAssigner(Race::inOrder)
                .build();
    }

    /** The reader that asks gets the first of the files that are left, so none is older than what it has read. */
    static FileSplitAssigner inOrder(Collection<FileSourceSplit> splits) {
        Comparator<FileSourceSplit> byName = Comparator.comparing(split -> split.path().getName());
        // SimpleSplitAssigner takes from the end.
        return new SimpleSplitAssigner(splits.stream().sorted(byName.reversed()).toList());
    }

    static WindowAssigner<Object, TimeWindow> windows(ParameterTool options) {
        Duration size = ticks(options, "size");
        return switch (options.getRequired("kind")) {
            case "tumbling" -> TumblingEventTimeWindows.of(size);
            case "sliding" -> SlidingEventTimeWindows.of(size, ticks(options, "slide"));
            case "session" -> EventTimeSessionWindows.withGap(size);
            default -> throw new IllegalArgumentException(options.get("kind"));
        };
    }

    static Duration ticks(ParameterTool options, String seconds) {
        return Duration.ofMillis(options.getLong(seconds) * TICKS_PER_SECOND);
    }

    /** Records of time in ticks, key, price. */
    static final class Bids extends SimpleStreamFormat<Tuple3<Long, Long, Long>> {
        private final int keyOffset;

        Bids(int keyOffset) {
            this.keyOffset = keyOffset;
        }

        @Override
        public TypeInformation<Tuple3<Long, Long, Long>> getProducedType() {
            return Types.TUPLE(Types.LONG, Types.LONG, Types.LONG);
        }

        @Override
        public Reader<Tuple3<Long, Long, Long>> createReader(Configuration settings, FSDataInputStream stream) {
            return new Records<>(stream, RECORD_BYTES) {
                @Override
                Tuple3<Long, Long, Long> record(ByteBuffer buffer, int at) throws IOException {
                    return Tuple3.of(buffer.getLong(at), buffer.getLong(at + keyOffset), buffer.getLong(at + 24));
                }
            };
        }
    }

    /** Little-endian records of so many bytes each. */
    abstract static class Records<T> implements StreamFormat.Reader<T> {
        private final FSDataInputStream stream;
        private final int bytes;
        private final ByteBuffer buffer;

        Records(FSDataInputStream stream, int bytes) {
            this.stream = stream;
            this.bytes = bytes;
            this.buffer = ByteBuffer.allocate(4096 * bytes).order(ByteOrder.LITTLE_ENDIAN).limit(0);
        }

        /** The record at a position of the buffer. */
        abstract T record(ByteBuffer buffer, int at) throws IOException;

        @Override
        public T read() throws IOException {
            if (!buffer.hasRemaining()) {
                buffer.clear().limit(stream.readNBytes(buffer.array(), 0, buffer.capacity()));
                if (!buffer.hasRemaining()) {
                    return null;
                }
            }
            int at = buffer.position();
            buffer.position(at + bytes);
            return record(buffer, at);
        }

        @Override
        public void close() throws IOException {
            stream.close();
        }
    }

    /** Counts what a source task emits, and notes when the warm-up is over. */
    static final class Warmup implements Serializable {
        private final int chunk;
        private int counted;

        Warmup(int chunk) {
            this.chunk = chunk;
        }

        void emitted() {
            if (++counted == chunk) {
                counted = 0;
                long emitted = EMITTED.addAndGet(chunk);
                if (emitted >= warmUpEvents && emitted - chunk < warmUpEvents) {
                    timedFromNanos = System.nanoTime();
                    timedFromEvents = emitted;
                }
            }
        }
    }

    /** Drops the time, which Flink keeps beside the record from here on. */
    static final class Emit implements MapFunction<Tuple3<Long, Long, Long>, Tuple2<Long, Long>> {
        private final Tuple2<Long, Long> bid = new Tuple2<>();
        private final Warmup warmup = new Warmup(1024);

        @Override
        public Tuple2<Long, Long> map(Tuple3<Long, Long, Long> record) {
            warmup.emitted();
            bid.setFields(record.f1, record.f2);
            return bid;
        }
    }

    static final class Count implements AggregateFunction<Tuple2<Long, Long>, Long, Long> {
        public Long createAccumulator() { return 0L; }
        public Long add(Tuple2<Long, Long> bid, Long count) { return count + 1; }
        public Long getResult(Long count) { return count; }
        public Long merge(Long left, Long right) { return left + right; }
    }

    static final class Counted extends ProcessWindowFunction<Long, Tuple4<Long, Long, Long, Double>, Long, TimeWindow> {
        @Override
        public void process(
                Long key, Context context, Iterable<Long> counts, Collector<Tuple4<Long, Long, Long, Double>> out) {
            out.collect(row(context.window(), key, counts.iterator().next()));
        }
    }

    static final class Median
            extends ProcessWindowFunction<Tuple2<Long, Long>, Tuple4<Long, Long, Long, Double>, Long, TimeWindow> {
        private long[] prices = new long[1024];

        @Override
        public void process(
                Long key,
                Context context,
                Iterable<Tuple2<Long, Long>> bids,
                Collector<Tuple4<Long, Long, Long, Double>> out) {
            int n = 0;
            for (Tuple2<Long, Long> bid : bids) {
                if (n == prices.length) {
                    prices = Arrays.copyOf(prices, 2 * n);
                }
                prices[n++] = bid.f1;
            }
            Arrays.sort(prices, 0, n);
            out.collect(row(context.window(), key, (prices[(n - 1) / 2] + prices[n / 2]) / 2.0));
        }
    }

    static Tuple4<Long, Long, Long, Double> row(TimeWindow window, Long key, double value) {
        return Tuple4.of(window.getStart(), window.getEnd(), key, value);
    }

    /** Counts the rows and, given a directory, writes them there, a file of big-endian records from each task. */
    record Results(String directory) implements Sink<Tuple4<Long, Long, Long, Double>> {
        @Override
        public SinkWriter<Tuple4<Long, Long, Long, Double>> createWriter(WriterInitContext context) throws IOException {
            String name = context.getTaskInfo().getIndexOfThisSubtask() + ".rows";
            DataOutputStream rows = new DataOutputStream(
                    directory == null
                            ? OutputStream.nullOutputStream()
                            : new BufferedOutputStream(new FileOutputStream(new File(directory, name))));
            return new SinkWriter<>() {
                public void write(Tuple4<Long, Long, Long, Double> row, Context context) throws IOException {
                    ROWS.incrementAndGet();
                    rows.writeLong(row.f0);
                    rows.writeLong(row.f1);
                    rows.writeLong(row.f2);
                    rows.writeDouble(row.f3);
                }

                public void flush(boolean endOfInput) {}

                public void close() throws IOException {
                    rows.close();
                }
            };
        }
    }
}
