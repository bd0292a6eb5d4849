"What is installed: one lock that satisfies every declared range, and a wheel that holds the package and asks for runtime dependencies only."
import configparser
import os
import re
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser

import pytest
from packaging.requirements import Requirement
from processes import ROOT


def settings():
    "The values of settings.ini."
    parser = configparser.ConfigParser(delimiters=['='])
    parser.read(ROOT/'settings.ini', encoding='utf-8')
    return parser['DEFAULT']


def words(key): return settings().get(key, '').split()


def locked():
    "Version of every locked package by its normalized name."
    lines = [line for f in ('requirements.lock', 'requirements-nodeps.lock') for line in (ROOT/f).read_text(encoding='utf-8').splitlines()]
    assert [line for line in lines if not re.fullmatch(r'#.*|[\w.-]+==[\w.!]+', line)]==[], 'one `name==version` a line, without local suffixes, paths or hosts'
    return {re.sub('[-_.]+', '-', name).lower(): version for name, version in (line.split('==') for line in lines if '==' in line)}


def test_lock_satisfies_every_declared_range():
    lock = locked()
    unlocked = {'bench'}  # peers, installed for `make bench` alone
    for key in ('requirements', *(f'{e}_requirements' for e in words('extras') if e not in unlocked)):
        assert words(key), f'settings.ini: {key} is empty'
        for r in map(Requirement, words(key)):
            version = lock.get(re.sub('[-_.]+', '-', r.name).lower())
            assert version and r.specifier.contains(version), f'{key}: {r}, locked {version}'


def test_environment_is_the_lock():
    from importlib.metadata import PackageNotFoundError, version
    def installed(name):
        try: return version(name).partition('+')[0]
        except PackageNotFoundError: return 'missing'
    wrong = {name: (v, installed(name)) for name, v in locked().items() if installed(name)!=v}
    assert wrong=={}, 'locked, installed: run `make venv`'


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    "A wheel built from a copy of the sources, and the folder where it is unpacked."
    source = tmp_path_factory.mktemp('source')
    names = ['settings.ini', 'setup.py', 'MANIFEST.in', 'README.md', 'LICENSE', 'CHANGELOG.md', 'CITATION.cff']
    for name in names: shutil.copy(ROOT/name, source)
    shutil.copytree(ROOT/'sandwich_repro', source/'sandwich_repro', ignore=shutil.ignore_patterns('__pycache__'))
    command = [sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '--no-build-isolation', '-w', 'dist', '.']
    r = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert r.returncode==0, r.stderr[-3000:]
    (path,) = (source/'dist').glob('*.whl')
    with zipfile.ZipFile(path) as z: z.extractall(source/'unpacked')
    return source/'unpacked'


def metadata(wheel, name='METADATA'):
    (folder,) = wheel.glob('*.dist-info')
    return (folder/name).read_text(encoding='utf-8')


def test_wheel_holds_the_package(wheel):
    files = {p.name for p in (wheel/'sandwich_repro').iterdir()}
    assert files=={p.name for p in (ROOT/'sandwich_repro').iterdir() if p.suffix=='.py' or p.name=='py.typed'}
    assert {p.name for p in wheel.iterdir() if not p.name.endswith('.dist-info')}=={'sandwich_repro'}


def test_wheel_asks_for_runtime_dependencies_only(wheel):
    needs = [Requirement(r) for r in Parser().parsestr(metadata(wheel)).get_all('Requires-Dist')]
    assert {str(r.name) for r in needs if r.marker is None}=={Requirement(w).name for w in words('requirements')}
    assert not {r.name for r in needs if r.marker is None} & {'nbdev', 'fastcore', 'execnb', 'ipykernel', 'pytest', 'smalldocs', 'transformers'}
    extras = {e: {r.name for r in needs if r.marker and r.marker.evaluate({'extra': e})} for e in words('extras')}
    assert extras=={e: {Requirement(w).name for w in words(f'{e}_requirements')} for e in words('extras')}


def test_wheel_runs_from_another_folder(wheel, tmp_path):
    env = {**os.environ, 'PYTHONPATH': str(wheel)}
    run = lambda code: subprocess.run([sys.executable, '-c', code], cwd=tmp_path, env=env, capture_output=True, text=True)  # noqa: E731
    r = run('import sandwich_repro; print(sandwich_repro.__file__, sandwich_repro.__version__)')
    assert r.stdout.split()==[str(wheel/'sandwich_repro'/'__init__.py'), settings()['version']], r.stderr
    assert 'sandwich-repro = sandwich_repro.cli:main' in metadata(wheel, 'entry_points.txt')
    r = run('import sys; sys.argv = ["sandwich-repro", "--help"]; from sandwich_repro.cli import main; main()')
    assert r.returncode==0 and 'reproduce' in r.stdout, r.stderr[-2000:]
