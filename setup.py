"Package metadata: every value comes from settings.ini."
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

_root = Path(__file__).parent
_parser = ConfigParser(delimiters=['='])
_parser.read(_root/'settings.ini', encoding='utf-8')
cfg = _parser['DEFAULT']


def words(key):
    "A setting as a list; an absent or empty one is an empty list."
    return (cfg.get(key) or '').split()


extras = {name: words(f'{name}_requirements') for name in words('extras')}
setup(
    name=cfg['lib_name'], version=cfg['version'], description=cfg['description'],
    long_description=(_root/'README.md').read_text(encoding='utf-8'), long_description_content_type='text/markdown',
    author=cfg['author'], author_email=cfg['author_email'], url=cfg['git_url'], keywords=cfg['keywords'],
    license='Apache-2.0', python_requires=f">={cfg['min_python']}",
    classifiers=[f"Intended Audience :: {cfg['audience']}",
                 'Programming Language :: Python :: 3', 'Topic :: Scientific/Engineering :: Artificial Intelligence', 'Typing :: Typed'],
    packages=find_packages(include=[cfg['lib_path'], f"{cfg['lib_path']}.*"]), package_data={cfg['lib_path']: words('package_data')},
    install_requires=words('requirements'), extras_require=extras,
    entry_points=dict(console_scripts=words('console_scripts'), nbdev=[f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"]),
)
